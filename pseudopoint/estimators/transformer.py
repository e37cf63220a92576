"""The encoding of tables as a step of scikit-learn's pipelines."""

from collections.abc import Collection
from copy import copy
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from .checks import no_type_check, store, validated
from .frames import as_pandas, encoded, is_table


class TableTransformer(TransformerMixin, BaseEstimator):
    """Columns of a table (pandas, polars, Arrow) as numbers, by the rules of docs/tables.md.

    Numbers, dates (days), durations (days) and times of day (hours) are one feature, gaps in them the median of the
    training rows and a further feature where training had gaps; true and false are 1 and 0; text and categories are one
    0/1 feature for each of the 50 most frequent. `GPRegressor` and `GPClassifier` do the same by themselves: this is
    for other estimators, and to look at.

    Parameters
    ----------
    missing : words that mark a gap, in any column.

    Attributes
    ----------
    encoder_ : the rules, a `tables.TableEncoder`. columns_ : names of the columns. notes_ : sentences on what was
    dropped, filled or could be read in another way.

    Examples
    --------
    >>> import pandas as pd
    >>> from pseudopoint import TableTransformer
    >>> table = pd.DataFrame({"size": [1.5, None, 3.0, 2.0], "town": ["a", "b", "a", "a"]})
    >>> encode = TableTransformer().set_output(transform="pandas")
    >>> encode.fit_transform(table).columns.tolist()
    ['size', 'size_missing', 'town=a', 'town=b']
    """

    encoder_: Any
    columns_: Any
    notes_: Any

    @no_type_check
    def __init__(self, missing: Collection[str] = ()):
        store(locals())

    def fit(self, X, y=None):
        """Learn how each column is read. TableError, a ValueError, where no column is of use or one is ±inf."""
        from ..tables import TableEncoder

        learner = copy(self)  # whatever is raised leaves this one as it was
        if is_table(X):
            validate_data(learner, X, skip_check_array=True)
            frame = as_pandas(X)
        else:
            import pandas as pd

            cells = validated(learner, X, dtype=None, ensure_all_finite="allow-nan")
            frame = as_pandas(pd.DataFrame(cells, columns=[f"x{j}" for j in range(cells.shape[1])]).infer_objects())
        target = "target"
        while target in frame.columns:
            target += "_"
        whole = frame.assign(**{target: np.arange(float(len(frame)))})
        learner.columns_ = list(frame.columns)
        learner.encoder_, learner.notes_ = TableEncoder.learn(whole, target, missing=self.missing)  # pyright: ignore
        self.__dict__ = learner.__dict__
        return self

    def transform(self, X):
        """The features [N, D] of rows in the columns of `fit`; a warning says what is odd in them."""
        check_is_fitted(self)
        return encoded(self, X)

    def get_feature_names_out(self, input_features=None):
        """Names of the D features; `input_features`, where given, are the names of the columns."""
        check_is_fitted(self)
        if input_features is not None and list(map(str, input_features)) != self.columns_:
            raise ValueError("input_features is not equal to feature_names_in_")
        return np.asarray(self.encoder_.feature_names, object)

    def __sklearn_tags__(self):
        tags = TransformerMixin.__sklearn_tags__(self)  # pyright: ignore[reportAttributeAccessIssue]
        tags.input_tags.allow_nan = tags.input_tags.string = tags.input_tags.categorical = True
        return tags
