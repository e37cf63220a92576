"""The papers' data sets by name: found, verified, downloaded, split.

    X, y, about = datasets.load("energy", "folder")     # else $PSEUDOPOINT_DATA, else ~/.cache/pseudopoint
    train, test = datasets.split(len(y), seed=0)

They read files with pandas, so they are not in `pseudopoint.data`, which belongs to the core and knows arrays only.
"""

from pseudopoint.datasets.fetching import *
from pseudopoint.datasets.loading import *
