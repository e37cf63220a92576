"""What kinds of targets there are: which likelihood suits them, where its numbers start, and what is refused."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import norm

from ..likelihoods import (
    AbstractClasses,
    AbstractLikelihood,
    Bernoulli,
    Beta,
    Exponential,
    Gamma,
    Gaussian,
    Heteroscedastic,
    HeteroscedasticStudentT,
    Laplace,
    NegativeBinomial,
    Ordinal,
    Poisson,
    RobustMax,
    Softmax,
    StudentT,
)
from ..names import Settings
from .checks import unknown

MAX_LEVELS = 100
LEAST_SIZE = 1e-3  # of a real target that is not scaled: the standard deviation of its noise is at least 1e-4

Make = Callable[[np.ndarray, np.ndarray], AbstractLikelihood]


class Target(NamedTuple):
    """A likelihood to be: `make(y, weight)` starts its numbers from the (scaled) target."""

    name: str
    make: Make
    support: str
    known_noise: bool = False
    levels: Callable[[np.ndarray], np.ndarray | None] = lambda y: None


def _mean(y, weight):
    return float(np.average(y, weights=weight)) or 1.0


def _ordinal(y, weight):
    """Edges at the normal quantiles of the shares of the levels."""
    share = np.bincount(y.astype(int), weights=weight) / weight.sum()
    below = np.cumsum(share)[:-1].clip(1e-6, 1 - 1e-6)
    edges = norm.ppf(below)
    return Ordinal(edges + 1e-3 * np.arange(len(edges)), learn_edges=True, learn_scale=False)


def _levels(y):
    levels = np.unique(y)
    if len(levels) > MAX_LEVELS:
        raise ValueError(
            f"an ordinal target has a few levels, and this one has {len(levels)} different values: "
            "use another likelihood, or round the target"
        )
    return levels


# By the names of `names.REGRESSION`: a target from the noise variance at the start.
REGRESSION: dict[str, Callable[[float], Target]] = {
    "auto": lambda noise: Target("auto", lambda y, w: Gaussian(noise), "real", known_noise=True),
    "gaussian": lambda noise: Target("gaussian", lambda y, w: Gaussian(noise), "real", known_noise=True),
    "heteroscedastic": lambda noise: Target("heteroscedastic", lambda y, w: Heteroscedastic(noise**0.5), "real"),
    "heteroscedastic_student_t": lambda noise: Target(
        "heteroscedastic_student_t", lambda y, w: HeteroscedasticStudentT(noise**0.5), "real"
    ),
    "student_t": lambda noise: Target("student_t", lambda y, w: StudentT(noise**0.5), "real"),
    "laplace": lambda noise: Target("laplace", lambda y, w: Laplace((noise / 2) ** 0.5), "real"),
    "poisson": lambda _: Target("poisson", lambda y, w: Poisson(_mean(y, w)), "counts"),
    "negative_binomial": lambda _: Target("negative_binomial", lambda y, w: NegativeBinomial(_mean(y, w)), "counts"),
    "gamma": lambda _: Target("gamma", lambda y, w: Gamma(_mean(y, w)), "positive"),
    "exponential": lambda _: Target("exponential", lambda y, w: Exponential(_mean(y, w)), "positive"),
    "beta": lambda _: Target("beta", lambda y, w: Beta(), "unit"),
    "ordinal": lambda _: Target("ordinal", _ordinal, "classes", levels=_levels),
}
# By the names of `names.CLASSIFICATION`: a likelihood from the number of classes.
CLASSIFICATION: dict[str, Callable[[int], AbstractClasses]] = {
    "auto": lambda classes: Bernoulli() if classes == 2 else Softmax(classes),
    "logit": lambda classes: Bernoulli("logit"),
    "probit": lambda classes: Bernoulli("probit"),
    "softmax": Softmax,
    "robustmax": RobustMax,
}


def regression_likelihood(likelihood: Any, noise: float) -> Target:
    """The target of a likelihood given by name or as an object. Raises ValueError on any other."""
    if isinstance(likelihood, str) and likelihood in REGRESSION:
        return REGRESSION[likelihood](noise)
    if not isinstance(likelihood, AbstractLikelihood):
        raise unknown("likelihood", likelihood, REGRESSION)
    name, support = type(likelihood).__name__, likelihood.support
    if likelihood.classes and not likelihood.ordered:
        raise ValueError(f"likelihood={name} is for classes: use GPClassifier")
    levels = (lambda y: np.arange(float(likelihood.classes))) if likelihood.ordered else (lambda y: None)
    return Target(name, lambda y, w: likelihood, support, likelihood.gaussian_noise is not None, levels)


def size_of(y: np.ndarray, weight: np.ndarray | None = None) -> float:
    """Mean y² of a real target that is not scaled, gaps apart: variances start relative to it, so that a fit is the
    same in any units. Raises ValueError where the least noise would be a tenth of √ of it or more."""
    known = ~np.isnan(y)
    size = float(np.average(np.asarray(y[known], float) ** 2, weights=None if weight is None else weight[known]))
    if 0 < size < LEAST_SIZE**2:
        raise ValueError(
            f"the target is {size**0.5:.2g} from 0 (root mean square), too small for scale_target=False, where noise "
            "has a standard deviation of at least 1e-4: leave scale_target=True, or give the target in a smaller unit"
        )
    return size or 1.0


def started(likelihood: AbstractLikelihood, settings: Settings, y: np.ndarray, weight: np.ndarray, scaled: bool):
    """A likelihood at its start, and the variance of f there, None where it is the kernel's own start. The noise of one
    by name is relative to `size_of` a real target that is not scaled; an object's numbers stay as they are."""
    if scaled or not likelihood.additive:
        return likelihood, None if scaled else 1.0  # f is a logarithm or the like, of the size of one
    size = size_of(y, weight)
    return likelihood.noise_times(size) if isinstance(settings.likelihood, str) else likelihood, None


def class_likelihood(likelihood: Any, classes: int) -> AbstractLikelihood:
    """The likelihood of so many classes, given by name or as an object. Raises ValueError on any other."""
    if isinstance(likelihood, str) and likelihood in CLASSIFICATION:
        made = CLASSIFICATION[likelihood](classes)
        if made.classes != classes:
            raise ValueError(f"likelihood={likelihood!r} is for two classes, but the target has {classes}: use 'auto'")
        return made
    if not isinstance(likelihood, AbstractLikelihood):
        raise unknown("likelihood", likelihood, CLASSIFICATION)
    if not likelihood.classes:
        raise ValueError(f"likelihood={type(likelihood).__name__} is not for classes: use GPRegressor")
    if likelihood.classes != classes:
        raise ValueError(f"the likelihood is for {likelihood.classes} classes, but the target has {classes}")
    return likelihood


_REFUSED: dict[str, tuple[Callable[[np.ndarray], np.ndarray], str, str]] = {
    "counts": (
        lambda y: (y < 0) | (y != np.floor(y)),
        "counts 0, 1, 2, …",
        "use 'gamma' for positive amounts or 'gaussian' for real numbers",
    ),
    "positive": (lambda y: y <= 0, "numbers above 0", "drop those rows, add a small amount, or use 'gaussian'"),
    "unit": (
        lambda y: (y <= 0) | (y >= 1),
        "proportions between 0 and 1, both excluded",
        "scale the target, or move its ends inward by a small amount",
    ),
}


def check_target(target: Target, y: np.ndarray, rows: np.ndarray | None = None) -> None:
    """Raises ValueError, with the row (its number, if `rows` numbers them), where y is not what the likelihood
    describes."""
    rows = np.arange(len(y)) if rows is None else rows
    if target.support in _REFUSED:
        wrong, asked, remedy = _REFUSED[target.support]
        bad = wrong(y)
        if bad.any():
            row = int(np.argmax(bad))
            raise ValueError(
                f"the target holds {y[row]:g} in row {rows[row]} ({bad.sum()} such rows), but the likelihood "
                f"{target.name} is for {asked}: {remedy}"
            )
    elif target.support == "classes" and target.name == "Ordinal":
        classes = len(target.levels(y))  # pyright: ignore[reportArgumentType]
        bad = (y != np.floor(y)) | (y < 0) | (y >= classes)
        if bad.any():
            row = int(np.argmax(bad))
            raise ValueError(f"the target holds {y[row]:g} in row {rows[row]}, which is no level 0, …, {classes - 1}")


def refuse_unfit(likelihood: AbstractLikelihood, scaled: np.ndarray, y: np.ndarray, weight: np.ndarray) -> None:
    """Raises ValueError where a likelihood, perhaps of the user's own, has no finite log density at f = 0."""
    f = np.zeros((likelihood.latents, len(y)) if likelihood.latents > 1 else len(y))
    with np.errstate(all="ignore"):
        value = np.asarray(likelihood.log_prob(f, scaled))
    bad = ~np.isfinite(value) & (weight > 0)
    if bad.any():
        row = int(np.argmax(bad))
        aside = (
            "" if scaled[row] == y[row] else f", {scaled[row]:g} when scaled (scale_target=False leaves it as it is)"
        )
        raise ValueError(
            f"the likelihood {likelihood.name} gives log p(y | f = 0) = {value[row]:g} for the target {y[row]:g} in "
            f"row {row}{aside} ({bad.sum()} such rows): use a likelihood for such targets"
        )
