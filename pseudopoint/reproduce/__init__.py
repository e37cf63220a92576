"""Experiments that reproduce a published figure or table: found in a folder, run row by row, told in one page."""

from pseudopoint.reproduce.experiment import Experiment as Experiment
from pseudopoint.reproduce.experiment import ExperimentError as ExperimentError
from pseudopoint.reproduce.experiment import experiment as experiment
from pseudopoint.reproduce.experiment import experiments_folder as experiments_folder
from pseudopoint.reproduce.experiment import names as names
from pseudopoint.reproduce.runner import Job as Job
from pseudopoint.reproduce.runner import Step as Step
from pseudopoint.reproduce.runner import computing as computing
from pseudopoint.reproduce.runner import listing as listing
from pseudopoint.reproduce.runner import reproduce as reproduce
from pseudopoint.reproduce.runner import stored_folder as stored_folder
from pseudopoint.reproduce.words import in_lines as in_lines
