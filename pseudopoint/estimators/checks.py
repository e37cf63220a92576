"""Checks of settings, questions and arrays: what comes back can be computed with, or one sentence says what to pass."""

import reprlib
from collections.abc import Callable, Collection, Mapping
from numbers import Integral, Real
from typing import Any, TypeVar, get_args

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, validate_data

from ..data import LARGEST
from ..names import SETTINGS, Settings
from ..priors import AbstractPrior, parsed
from ..starts.expressions import is_expression

DAY = 8.64e13  # in nanoseconds
LARGEST_TARGET = 1e305  # so that sums of a few predictions do not overflow

_SHORT = reprlib.Repr()
_SHORT.maxother = _SHORT.maxstring = 60


def shown(value: Any) -> str:
    """A value of any type and size as a sentence can hold it: an array takes lines, 10⁴⁰⁰ many digits."""
    return " ".join(_SHORT.repr(value).split())


def checked(settings: Mapping[str, Any]) -> Settings:
    """Settings, each checked by the type that it has in `Settings`. Raises ValueError, whose sentence names the setting
    and what it may be."""
    return Settings(**{name: _CHECKS.get(SETTINGS[name].kind, _word)(name, value) for name, value in settings.items()})


def unknown(name: str, value: Any, words: Collection | None = None) -> ValueError:
    """What to raise for a value that is none of the words of a setting, or of those of them that are given."""
    listed, others = ", ".join(map(str, words or SETTINGS[name].words)), ", or an object" if _objects(name) else ""
    return ValueError(f"{name}={shown(value)} is unknown: use one of {listed}{others}")


def _objects(name: str) -> bool:
    """Whether a setting takes objects beside its words."""
    return Any in get_args(SETTINGS[name].kind)


F = TypeVar("F", bound=Callable)


def no_type_check(function: F) -> F:
    """The function. Its types are for readers and editors: `fit` checks settings, as scikit-learn asks, and the tests'
    run-time checks of types pass over what has a decorator of this name. `typing`'s own hides types from editors too.
    """
    return function


def store(arguments: dict[str, Any]) -> None:
    """Store the arguments of a constructor, its `locals()`, in `self` as they are."""
    vars(arguments["self"]).update({name: value for name, value in arguments.items() if name != "self"})


def _word(name: str, value: Any) -> Any:
    """One of the setting's words, or an object where it takes those. 1 is not True, but another setting."""
    if _objects(name) and not isinstance(value, str):
        return value
    if not (isinstance(value, str | bool | np.bool_) and value in SETTINGS[name].words):
        raise unknown(name, value)
    return value


def truth(name: str, value: Any) -> bool:
    """True or False. Raises ValueError on any other value, for a word such as "no" would count as true."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name}={shown(value)} must be True or False")
    return bool(value)


def whole(name: str, value: Any) -> int:
    """A positive whole number as Python's own. Raises ValueError on any other value."""
    if not (isinstance(value, Integral) and int(value) > 0):
        raise ValueError(f"{name}={shown(value)} must be a positive whole number")
    return int(value)


def positive(name: str, value: Any) -> float:
    """A positive number as Python's own; infinity where that means something. Raises ValueError on any other value."""
    try:
        number = float(value) if isinstance(value, Real) else np.nan
    except OverflowError:
        number = np.inf
    infinite = SETTINGS[name].infinite
    if not (0 < number < np.inf or infinite and number == np.inf):
        raise ValueError(
            f"{name}={shown(value)} must be a positive number{infinite and f'; infinity (inf) {infinite}'}"
        )
    return number


def seed_of(random_state: Any) -> int:
    """A seed from what scikit-learn takes as one. Raises ValueError on any other value."""
    if not isinstance(random_state, Integral):
        return int(check_random_state(random_state).randint(2**31 - 1))
    if not 0 <= int(random_state) < 2**32:
        raise ValueError(f"random_state={shown(random_state)} must be a whole number from 0 to 2³² − 1, or None")
    return int(random_state)


def priors_of(value: Any) -> dict[str, AbstractPrior] | None:
    """Priors by name, given as words or objects. Raises ValueError on any other value."""
    given = parsed(value) if isinstance(value, str) else value
    if not given:
        return None
    if not isinstance(given, dict) or not all(
        isinstance(name, str) and isinstance(prior, AbstractPrior) for name, prior in given.items()
    ):
        raise ValueError(
            f"priors={shown(value)} must be a dict of priors by name, such as {{'lengthscale': LogNormal()}}"
        )
    return given


_CHECKS: dict[Any, Callable[[str, Any], Any]] = {
    bool: truth,
    int: whole,
    int | None: lambda name, value: None if value is None else whole(name, value),
    float: positive,
    float | None: lambda name, value: None if value is None else positive(name, value),
    Any: lambda name, value: seed_of(value),
    SETTINGS["priors"].kind: lambda name, value: priors_of(value),
    SETTINGS["kernel"].kind: lambda name, value: value if is_expression(value) else _word(name, value),
    SETTINGS["likelihood"].kind: lambda name, value: value,  # by `targets`: each estimator has its own
}


def numbers(name: str, values: Any, durations: bool = True) -> np.ndarray:
    """Real numbers as float64, masked ones as NaN; `durations` as days, those of a table's column. Raises ValueError
    where some are none, or too large."""
    try:
        array = np.asarray(unmasked(values))
        if array.dtype.kind == "c":
            raise TypeError("complex numbers are none")
        if array.dtype.kind == "M":
            raise TypeError("dates are none; give the days since one of them, (dates - first) / np.timedelta64(1, 'D')")
        if array.dtype.kind == "m" and not durations:
            raise TypeError("durations are none; divide them by a unit, such as np.timedelta64(1, 'D')")
        if array.dtype.kind == "m":
            return in_days(array)
        with np.errstate(over="ignore", invalid="ignore"):
            return array.astype(np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{name} must hold real numbers only: {reason}") from error


def nanoseconds(values: Any) -> Any:
    """Dates, since 1970, and durations of an array in nanoseconds whatever its unit, NaT as NaN; else what is given."""
    if isinstance(values, list | tuple) and values and np.asarray(values[0]).dtype.kind in "Mm":
        values = np.asarray(values)
    elif (to_numpy := getattr(values, "to_numpy", None)) is not None:  # of a table beside a model of arrays
        array = to_numpy()
        values = array if array.dtype.kind in "Mm" else values
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "Mm":
        return values
    kind = values.dtype.kind
    unit, count = np.datetime_data(values.dtype)
    if kind == "M" and unit in ("Y", "M"):  # of no fixed length
        values, unit, count = values.astype("M8[D]"), "D", 1
    if unit in ("Y", "M", "generic"):
        raise ValueError(f"durations in the unit {unit} have no fixed length: give them in days or less")
    length = count * float(np.timedelta64(1, unit) / np.timedelta64(1, "ns"))
    return np.where(np.isnat(values), np.nan, values.astype(np.int64) * length)


def one_column(y: Any) -> Any:
    """A target [N, 1], of an array or a table, as [N], as `fit` takes it; else what is given."""
    try:
        shape = getattr(y, "shape", None) or np.shape(y)
    except ValueError:  # of rows that differ in length, which is for other checks to say
        return y
    return np.asanyarray(y)[:, 0] if len(shape) == 2 and shape[1] == 1 else y


def in_days(y: Any) -> Any:
    """Durations in days, as a target of them is read; else what is given."""
    array = nanoseconds(y)
    return y if array is y else array / DAY


def validated(model: Any, *arrays: Any, **checks: Any) -> Any:
    """`validate_data` of scikit-learn. What it warns of, numbers too large for float64, our checks refuse by row; so
    are masked numbers and dates that are none (NaT), which it would take for numbers. Raises ValueError for a whole
    number beyond float64."""
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            return validate_data(model, nanoseconds(unmasked(arrays[0])), *map(unmasked, arrays[1:]), **checks)
    except ValueError as error:  # of lists, as services send them
        if isinstance(arrays[0], list) and not arrays[0]:
            raise ValueError("X has no rows: give at least one") from error
        if "inhomogeneous" in str(error):
            raise ValueError("rows of X or y differ in length: give each row one number for every column") from error
        if "got 1D array" in str(error):  # which lists all numbers
            raise ValueError(
                "X has no columns. Reshape your data: X[:, None] is one column, X[None] one row"
            ) from error
        raise
    except OverflowError as error:
        raise ValueError(
            "X or y holds a whole number beyond 1.8e308, the largest that can be computed with: drop or rescale it"
        ) from error


def weights(sample_weight: Any, X: np.ndarray, precision: str) -> np.ndarray:
    """Weights of the rows [N]. Raises ValueError where there are no rows, where they are no weights, or where their
    sum is too large or small."""
    if len(X) == 0:
        raise ValueError("X has no rows: give at least one")
    given = None if sample_weight is None else numbers("sample_weight", sample_weight, durations=False)
    if given is not None and np.ndim(given) == 0:  # one for all rows, as scikit-learn has it
        given = np.full(len(X), float(given))
    with np.errstate(over="ignore"):
        weight = _check_sample_weight(given, X, dtype=np.float64, ensure_non_negative=True)
        total = weight.sum()
    if not total > 0:
        raise ValueError("sample_weight is zero for every row: give at least one row a positive weight")
    if not 1 / LARGEST[precision] <= total <= LARGEST[precision]:
        raise ValueError(
            f"sample_weight sums to {total:.4g}, which is too {'large' if total > 1 else 'small'} to compute with in "
            f"{precision}: a weight says how often its row was seen; divide the weights by their mean"
        )
    return weight


def noise_of_rows(noise_variance: Any, X: np.ndarray) -> np.ndarray:
    """Known noise variances [N]. Raises ValueError where they are none."""
    noise = numbers("noise_variance", noise_variance, durations=False)
    if noise.shape != (len(X),):
        raise ValueError(f"noise_variance has shape {noise.shape}, but X has {len(X)} rows: give one number a row")
    if not ((noise >= 0) & (noise < np.inf)).all():
        raise ValueError("noise_variance must be zero or positive in every row")
    return noise


def scaled_noise(noise: np.ndarray, scale: float, precision: str) -> np.ndarray:
    """Noise variances [N] in squared units of the target's scale, whose own square may be 0 or infinite. Beyond the
    largest a row tells nothing more."""
    with np.errstate(over="ignore"):
        return np.minimum(noise / scale / scale, LARGEST[precision])


def refuse_non_finite(X: np.ndarray, names: Any, target: np.ndarray | None = None) -> None:
    """Raises ValueError for NaN and infinity, by the name of the column."""
    columns = [("target", target)] if target is not None else []
    if not _finite(X):
        columns += [(f"column {names[j] if names is not None else j!r}", X[:, j]) for j in range(X.shape[1])]
    for name, values in columns:
        bad = ~np.isfinite(values)
        if bad.any():
            what = "NaN" if np.isnan(values).any() else "infinity (inf)"
            raise ValueError(
                f"{name} contains {what} in {bad.sum()} of {len(values)} rows, first in row {int(np.argmax(bad))}: "
                "drop those rows or impute the values"
            )


def refuse_large(y: np.ndarray, precision: str) -> None:
    """Raises ValueError for a target, as it is fitted, whose squares overflow: one that is not standardised."""
    largest = float(np.max(np.abs(y)))
    if largest > LARGEST[precision]:
        raise ValueError(
            f"the target holds {largest:.4g}, but at most {LARGEST[precision]:g} can be computed with in {precision} "
            "where it is not standardised: give it in a larger unit"
        )


def _finite(X: np.ndarray) -> bool:
    """Whether all numbers are; of a sum that is, all are, which spares an answer for each."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(X.sum()) or np.isfinite(X).all())


def unmasked(values: Any) -> Any:
    """A masked array without its mask, what it hides as NaN."""
    if not isinstance(values, np.ma.MaskedArray) or not np.ma.is_masked(values):
        return values
    return np.ma.filled(values.astype(np.float64 if values.dtype.kind in "biuf" else object), np.nan)


def refuse_noise_of_warped(warp: Any) -> None:
    """Known noise variances of rows where the target has a learned warp, which makes another noise of each."""
    if warp is not None:
        raise ValueError(
            "noise_variance does not go together with the warp of the target that this model has learned: leave it "
            "out, or fit with target_warp='none'"
        )


def refuse_bad_target(y):
    """NaN, infinity and numbers too large for predictions in a target, by row; all else is left to scikit-learn's
    checks."""
    try:
        values = numbers("the target", y)
    except ValueError:
        return
    if values.ndim == 1:
        refuse_non_finite(np.empty((0, 0)), None, values)
        large = np.abs(values) > LARGEST_TARGET
        if large.any():
            row = int(np.argmax(large))
            raise ValueError(
                f"the target holds {values[row]:g} in row {row} ({large.sum()} such rows), but at most "
                f"{LARGEST_TARGET:g} is computed with: give it in a larger unit, or drop those rows"
            )
