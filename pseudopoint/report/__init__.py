"""One HTML file that says how good a fit is: numbers, pictures and notes, with nothing to fetch from anywhere.

Pictures are PNG inside the file. The bars of the feature relevance and the confusion matrix are HTML, because names of
columns and of classes may be of any length and in any script.
"""

from pseudopoint.report.page import MAX_FEATURES as MAX_FEATURES
from pseudopoint.report.page import Report as Report
from pseudopoint.report.page import write_report as write_report
