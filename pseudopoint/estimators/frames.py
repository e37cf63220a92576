"""Tables given to an estimator as they are (pandas, polars, Arrow, what else narwhals reads), encoded by the rules of
`tables`, which are the command line's.

pandas and pyarrow are imported when the first table comes: arrays do without.
"""

import warnings
from dataclasses import replace
from numbers import Integral
from typing import Any, NamedTuple, get_args

import narwhals as nw
import numpy as np
from sklearn.utils.validation import check_consistent_length, column_or_1d, validate_data

from ..persistence import ModelFileError
from .checks import validated
from .warm import learned_by


class Given(NamedTuple):
    """What `fit` was given, as numbers: inputs, target and further columns; the places of the rows that have a target
    (None: all have), and what to say."""

    X: Any
    y: Any
    columns: tuple[Any, ...]
    places: np.ndarray | None = None
    notes: tuple[str, ...] = ()


def is_table(X: Any) -> bool:
    """Whether X is a DataFrame or an Arrow table."""
    return nw.dependencies.is_into_dataframe(X)


def is_lazy(X: Any) -> bool:
    """Whether X is a collection of Dask."""
    return hasattr(X, "__dask_graph__")


def as_pandas(X: Any) -> Any:
    """The table as pandas has it; what is not pandas goes by Arrow, as a Parquet file does. Column names are text."""
    import pandas as pd

    if nw.dependencies.is_pandas_dataframe(X):
        frame = X.set_axis(list(map(str, X.columns)), axis=1)
    else:
        frame = nw.from_native(X, eager_only=True).to_arrow().to_pandas(ignore_metadata=True)
    # Messages of tables count from 1, and those of estimators from 0.
    return frame.set_axis(pd.RangeIndex(-1, len(frame) - 1))


def given(model: Any, X: Any, y: Any, *columns: Any, classes: bool, encoder: Any = None) -> Given:
    """The rows that `fit` was given, as numbers. Of a table, rows without a target are dropped, also from `columns`,
    [N] or None; the encoder is learned from the others, as `commands.fit_table` does without rows held out.

    Labels of classes stay what they are. `encoder` is what made an array X of a table. Sets `encoder_` and `columns_`
    of the model, and scikit-learn's names and number of columns. Raises TableError, a ValueError, where the table
    cannot be encoded.
    """
    started, before = learned_by(model) is not None, (model.encoder_, model.columns_)
    model.encoder_, model.columns_ = encoder, None
    frame = as_pandas(X) if is_table(X) else None
    if started:
        _refuse_other_columns(before[1], None if frame is None else list(frame.columns))
    if frame is None:
        return Given(X, y, columns)
    import pandas as pd

    from ..tables import TableEncoder, drop_missing_target

    if y is None:
        raise ValueError(f"{type(model).__name__} requires y to be passed, but the target y is None")
    validate_data(model, _named(X, frame), skip_check_array=True)
    target, name = _target(y, frame)
    if not classes and pd.api.types.is_bool_dtype(target.dtype):
        target = target.astype("Float64")
    whole = frame.assign(**{name: target})
    there, dropped = drop_missing_target(whole, name, classes)
    if started:
        encoder, notes = replace(before[0], target_name=name), []
    else:
        encoder, notes = TableEncoder.learn(there, name, classes)
    rows = there.index.to_numpy() + 1
    model.encoder_, model.columns_ = encoder, list(frame.columns)
    said = [f"{dropped} rows were dropped because their target is missing"] if dropped else []
    y = target.loc[there.index].to_numpy() if classes else encoder.target(there)
    further = tuple(_taken(column, rows, len(frame)) for column in columns)
    return Given(encoder.inputs(there)[0], y, further, rows, (*said, *notes))


def plain_labels(y: Any) -> Any:
    """Labels of a nullable column of pandas, or of its cells, as NumPy has them, where none is missing: scikit-learn
    would read them as real numbers."""
    plain = getattr(y.dtype, "numpy_dtype", None) if nw.dependencies.is_pandas_series(y) else None
    if plain is not None and not y.isna().any():
        return y.to_numpy(plain)
    if (
        isinstance(y, np.ndarray)
        and y.dtype == object
        and y.size
        and all(isinstance(cell, Integral) for cell in y.flat)
    ):
        return np.array(y.tolist())  # true and false are whole numbers too
    return y


def _refuse_other_columns(known: list[str] | None, columns: list[str] | None) -> None:
    """Raises ValueError where the columns are not those of the fit that is started from; None are those of an array."""
    if known != columns:
        was, now = ("an array" if each is None else f"a table of {', '.join(each)}" for each in (known, columns))
        raise ValueError(f"warm_start=True starts from a fit to {was}, and X is {now}: give the same columns")


def encoded(model: Any, X: Any) -> np.ndarray:
    """Rows X for a model that knows tables, as numbers [N, D]; a warning says what is odd in them.

    The columns are those of the fit, in their order, as scikit-learn asks. A model that the command line saved takes
    them by name in any order, and ignores others. Raises ValueError where columns are missing or ±inf.
    """
    import pandas as pd

    if is_table(X):
        frame = as_pandas(X)
        if model.columns_ is not None:
            validate_data(model, _named(X, frame), reset=False, skip_check_array=True)
    else:
        cells = validated(model, X, reset=False, dtype=None, ensure_all_finite=False)
        frame = as_pandas(pd.DataFrame(cells, columns=model.columns_).infer_objects())
    rows, oddities = model.encoder_.inputs(frame)
    if oddities:
        warnings.warn("; ".join(oddities), UserWarning, stacklevel=4)
    return rows


def gaps(columns: list[str], rows: int) -> Any:
    """So many rows of a table without a value."""
    import pandas as pd

    return pd.DataFrame(None, index=range(rows), columns=columns, dtype=object)


def restored(fields: Any) -> Any:
    """The encoder in a model file. ModelFileError, from the verb on, unless this version knows all of it: a field left
    out would change the inputs."""
    from ..tables import TableEncoder, TableError
    from ..tables.columns import Kind

    newer = ModelFileError("describes its table in a way that this pseudopoint does not know; upgrade pseudopoint")
    try:
        encoder = TableEncoder.from_dict(fields)
    except TableError:
        raise newer from None
    if _lost(fields, encoder.to_dict()) or any(column.kind not in get_args(Kind) for column in encoder.columns):
        raise newer
    return encoder


def _lost(stored: Any, kept: Any) -> bool:
    """Whether `stored` has a key, at any depth, that `kept` has not."""
    if isinstance(stored, dict):
        return any(key not in kept or _lost(value, kept[key]) for key, value in stored.items())
    return isinstance(stored, list | tuple) and any(map(_lost, stored, kept))


def _named(X: Any, frame: Any) -> Any:
    """The table whose column names scikit-learn is to see: of pandas its own, as numbers are no names to it."""
    return X if nw.dependencies.is_pandas_dataframe(X) else frame


def _target(y: Any, frame: Any) -> tuple[Any, str]:
    """The target as a column beside those of the table, and a name that is free there."""
    import pandas as pd

    if is_table(y):
        table = as_pandas(y)
        if table.shape[1] != 1:
            raise ValueError(f"y should be a 1d array, got a table of {table.shape[1]} columns instead")
        y = table.iloc[:, 0]
    name = getattr(y, "name", None)
    name = name if isinstance(name, str) and name else "target"
    while name in frame.columns:
        name += "_"
    if not nw.dependencies.is_into_series(y):
        y = pd.Series(column_or_1d(y, warn=True))
    elif not nw.dependencies.is_pandas_series(y):
        y = pd.Series(nw.from_native(y, series_only=True).to_arrow().to_pandas())
    check_consistent_length(frame, y)
    return y.set_axis(frame.index), name


def _taken(column: Any, rows: np.ndarray, N: int) -> Any:
    """The rows of a column of N numbers; what is none is refused by who reads it."""
    return column if np.shape(column)[:1] != (N,) else np.asarray(column)[rows]
