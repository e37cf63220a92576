"""Experiments that reproduce a published figure or table: found in a folder, run row by row, shown on one page."""

from pseudopoint.reproduce.experiment import *
from pseudopoint.reproduce.findings import *
from pseudopoint.reproduce.page import *
from pseudopoint.reproduce.runner import *
