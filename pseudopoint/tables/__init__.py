"""Tables in, numbers out: reading, encoding and writing CSV and Parquet. The only folder that knows pandas and pyarrow.

`read_table` and `read_chunks` turn a file into DataFrames, `TableEncoder` turns a DataFrame into a matrix of floats by
rules learned once on the training table, and `write_chunks` turns DataFrames into a file.

Whatever is wrong with a table ends in a `TableError`, one sentence that says what, where and what to do. Whatever is
only odd (a category not seen in training, a gap where training had none) never stops a prediction: it becomes a note.
"""

from pseudopoint.tables.columns import Column as Column
from pseudopoint.tables.encoder import TableEncoder as TableEncoder
from pseudopoint.tables.messages import Oddity as Oddity
from pseudopoint.tables.messages import TableError as TableError
from pseudopoint.tables.messages import describe as describe
from pseudopoint.tables.reading import read_chunks as read_chunks
from pseudopoint.tables.reading import read_table as read_table
from pseudopoint.tables.target import class_target as class_target
from pseudopoint.tables.target import drop_missing_target as drop_missing_target
from pseudopoint.tables.target import looks_like_classes as looks_like_classes
from pseudopoint.tables.target import number_target as number_target
from pseudopoint.tables.writing import ChunkWriter as ChunkWriter
from pseudopoint.tables.writing import whole_file as whole_file
from pseudopoint.tables.writing import write_chunks as write_chunks
