"""Tables as people have them, for a model that was fitted to one by name."""

from typing import Any

import pandas as pd

from ..tables import TableEncoder

__all__ = ["encoded"]


def encoded(fields: dict[str, Any], X: Any) -> Any:
    """The features of a DataFrame that has the columns of the table; anything else, such as a DataFrame of the features
    themselves, as it is. Raises TableError where a column is missing or infinite."""
    if not isinstance(X, pd.DataFrame):
        return X
    encoder = TableEncoder.from_dict(fields)
    if set(encoder.feature_names) <= set(map(str, X.columns)):
        return X[encoder.feature_names]
    return pd.DataFrame(encoder.encode(X)[0], columns=encoder.feature_names)
