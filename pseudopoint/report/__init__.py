"""One HTML file that says how good a fit is: numbers, pictures and notes, all inside the file."""

from pseudopoint.report.page import *
