"""What the command line does, without a terminal: from files to files, and to one plain dictionary of results.

`choice` decides whether a target holds numbers or classes, `kinds` has what depends on that, `steps` has the commands,
`streamed` fits tables that need not fit into memory, `update` gives a model more rows, `export` writes models for other
runtimes, and `words` turns results into lines for people.
"""

from pseudopoint.commands.export import export_model as export_model
from pseudopoint.commands.steps import demo as demo
from pseudopoint.commands.steps import inspect_model as inspect_model
from pseudopoint.commands.steps import predict_table as predict_table
from pseudopoint.commands.steps import score_table as score_table
from pseudopoint.commands.streamed import fit_table as fit_table
from pseudopoint.commands.update import update_table as update_table
from pseudopoint.commands.words import in_lines as in_lines
