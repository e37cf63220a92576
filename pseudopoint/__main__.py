"""`python -m pseudopoint` is the command line."""

from pseudopoint.cli import main

main()
