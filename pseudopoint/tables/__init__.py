"""Tables in, numbers out: reading, encoding and writing CSV and Parquet. The only folder that knows pandas and pyarrow.

`read_table` and `read_chunks` turn a file into DataFrames, `TableEncoder` turns a DataFrame into a matrix of floats by
rules learned once on the training table, and `write_chunks` turns DataFrames into a file. Of tables that need not fit
into memory, `open_source` makes a source, `learn_table` an encoder, and `TableRows` the rows of a fit. `DaskSource` and
`DaskRows` are those of a cluster.

A fault in a table raises `TableError`, whose sentence says what, where and what to do. An oddity (a category not seen
in training, a gap where training had none) never stops a prediction: it becomes a note.
"""

from pseudopoint.tables.cluster import *
from pseudopoint.tables.columns import *
from pseudopoint.tables.dask_client import *
from pseudopoint.tables.encoder import *
from pseudopoint.tables.learning import *
from pseudopoint.tables.messages import *
from pseudopoint.tables.reading import *
from pseudopoint.tables.rows import *
from pseudopoint.tables.source import *
from pseudopoint.tables.target import *
from pseudopoint.tables.writing import *
