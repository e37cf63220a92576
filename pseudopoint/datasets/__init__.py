"""The papers' data sets by name: found, verified, downloaded, split.

    X, y, about = datasets.load("energy", "folder")     # else $PSEUDOPOINT_DATA, else ~/.cache/pseudopoint
    train, test = datasets.split(len(y), seed=0)

They are at the edge, because they read files with pandas; `pseudopoint.data` is the core's and knows arrays only.
"""

from pseudopoint.datasets.catalogue import CATALOGUE as CATALOGUE
from pseudopoint.datasets.catalogue import Source as Source
from pseudopoint.datasets.fetching import download as download
from pseudopoint.datasets.loading import DataError as DataError
from pseudopoint.datasets.loading import Table as Table
from pseudopoint.datasets.loading import data_folder as data_folder
from pseudopoint.datasets.loading import find as find
from pseudopoint.datasets.loading import load as load
from pseudopoint.datasets.loading import source as source
from pseudopoint.datasets.loading import split as split
