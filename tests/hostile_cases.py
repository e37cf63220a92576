"""The kinds of hostile cases, each a class whose `run` says how it ended and a strategy that draws it."""

import pickle
import tempfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from hostile import answered, mostly
from hostile_arrays import INPUTS, NOISES, QUESTIONS, ROWS, TARGETS, WEIGHTS
from hostile_files import Commands, Files, Tables, commands, files, tables
from hostile_settings import SETTINGS, SETUPS, WRONG, of_classes, settings_of
from hypothesis import strategies as st
from sklearn.base import clone

from pseudopoint import GPClassifier, GPRegressor

__all__ = ["KINDS", "Arrays", "Commands", "Files", "Settings", "Tables", "shares"]

ESTIMATORS = {"GPRegressor": GPRegressor, "GPClassifier": GPClassifier}


class Arrays(NamedTuple):
    """A fit of hostile arrays, and one question to it about hostile rows."""

    estimator: str
    setup: tuple[tuple[str, str], ...]
    X: str
    y: str
    weight: str
    noise: str
    rows: str
    question: str
    how: str
    N: int
    D: int
    seed: int

    def run(self) -> str:
        """ "predicted", or an error."""
        rng = np.random.default_rng(self.seed)
        model = ESTIMATORS[self.estimator](**settings_of(self.setup))
        y = TARGETS[self.y](rng, self.N, self.D)
        extra = {"sample_weight": WEIGHTS[self.weight](rng, self.N, self.D)}
        if self.estimator == "GPRegressor":
            extra["noise_variance"] = NOISES[self.noise](rng, self.N, self.D)
        model.fit(INPUTS[self.X](rng, self.N, self.D), y, **extra)
        answered(np.isfinite(model.bound_), f"bound_ is {model.bound_}")
        rows = INPUTS[self.rows](rng, 12, self.D)
        ask(model, rows, self.question, self.how, rng)
        return f"predicted: {self.question}"


def ask(model, rows, question: str, how: str, rng) -> None:
    """One question. Violation where the answer is not finite, of another shape, or has changed."""
    choices = {repr(value): value for value in QUESTIONS[question]}
    value = choices.get(how, QUESTIONS[question][0])
    if isinstance(model, GPClassifier):
        return ask_classifier(model, rows, question, value, rng)
    N, P = 12, outputs(model)
    if question == "predict with std":
        mean, std = model.predict(rows, return_std=True)
        finite(mean, (N, *P), rows)
        finite(std, (N, *P), rows)
        answered((std >= 0).all(), "a standard deviation is negative")
    elif question == "predict with cov":
        mean, covariance = model.predict(rows, return_cov=True)
        finite(mean, (N, *P), rows)
        finite(covariance, (N, *P, N, *P), rows)
        answered((np.diag(covariance.reshape(mean.size, -1)) >= 0).all(), "a variance is negative")
    elif question == "interval":
        ends = model.predict_interval(rows, value)
        finite(ends, (N, *P, 2), rows)
        answered((ends[..., 0] <= ends[..., 1]).all(), "an interval's lower end is above its upper end")
    elif question == "sample":
        finite(model.sample_y(rows, value), (N, *P, int(value or 0)), rows)
    elif question == "sample by seed":
        finite(model.sample_y(rows, 2, value), (N, *P, 2), rows)
    elif question == "paths":
        finite(model.paths(value, features=64)(rows), (int(value or 0), N), rows)
    elif question == "paths by seed":
        finite(model.paths(2, value, features=64)(rows), (2, N), rows)
    elif question == "paths of features":
        finite(model.paths(2, features=value)(rows), (2, N), rows)
    else:
        ask_either(model, rows, question, value, rng, model.predict)


def ask_classifier(model, rows, question, value, rng) -> None:
    """One question to a classifier."""
    p = model.predict_proba(rows)
    finite(p, (12, len(model.classes_)), rows)
    answered((p >= 0).all() and np.allclose(p.sum(axis=1), 1), "probabilities do not sum to 1")
    labels = model.predict(rows)
    answered(labels.shape == p.shape[:1] and np.isin(labels, model.classes_).all(), "a label that was not learned")
    answered(not np.isnan(model.predict_log_proba(rows)).any(), "a log probability is NaN")
    ask_either(model, rows, question, value, rng, model.predict_proba)


def ask_either(model, rows, question, value, rng, predict) -> None:
    """What both estimators answer."""
    before = predict(rows)
    finite(before, (12, *before.shape[1:]), rows)
    if question == "predict_latent":
        latent, std = model.predict_latent(rows, return_std=True)
        finite(latent, (12, *latent.shape[1:]), rows)
        answered((std >= 0).all(), "a standard deviation is negative")
    elif question == "log_density":
        density = model.log_density(rows, TARGETS[value](rng, len(before), 1))
        answered(
            density.shape == (len(before), *outputs(model)) and (density < np.inf).all(),
            f"log densities are {density[:3]}",
        )
    elif question == "score":
        with np.errstate(all="ignore"):  # scikit-learn squares the errors
            answered(model.score(rows, TARGETS[value](rng, len(before), 1)) is not None, "no score")
    elif question == "save and load":
        with tempfile.TemporaryDirectory() as folder:
            model.save(Path(folder) / "model.safetensors")
            other = type(model).load(Path(folder) / "model.safetensors")
        same(getattr(other, predict.__name__)(rows), before, "what was loaded predicts something else")
    elif question == "pickle":
        same(getattr(pickle.loads(pickle.dumps(model)), predict.__name__)(rows), before, "pickled, it differs")
    elif question == "clone":
        other: Any = clone(model)
        answered(set(other.get_params()) == set(model.get_params()), "a clone has other settings")
    elif question == "refit refused":
        try:
            model.fit(INPUTS[value](rng, 12, 2), np.arange(12) % 2)
        except ValueError:
            pass
        else:
            answered(False, f"fitted inputs {value!r}")
        same(predict(rows), before, "a refused fit changed the predictions")


def outputs(model) -> tuple[int, ...]:
    """(P,) of a model of P outputs, else ()."""
    names = getattr(model, "outputs_", None)
    return () if names is None else (len(names),)


def finite(values, shape, rows) -> None:
    """Violation unless an answer of N rows is finite; rows that are fewer are those that were given."""
    lengths = {12, 1} if len(rows) == 1 else {12}
    shapes = {tuple(length if size == 12 else size for size in shape) for length in lengths}
    answered(values.shape in shapes, f"an answer of shape {values.shape}, not {shape}")
    answered(np.isfinite(values).all(), f"an answer holds {values[~np.isfinite(values)][:1]}")


def same(after, before, what) -> None:
    """Violation unless equal, bit for bit."""
    answered(np.array_equal(after, before), what)


class Settings(NamedTuple):
    """Settings that may not go together, or are wrong."""

    estimator: str
    pairs: tuple[tuple[str, str], ...]
    y: str
    question: str
    how: str
    N: int
    D: int

    def run(self) -> str:
        """ "predicted", or an error."""
        rng = np.random.default_rng(zlib.crc32(repr(self).encode()))
        given = {"max_iter": 2, "initial": "robust"} | settings_of(self.pairs)
        model = ESTIMATORS[self.estimator](**given)
        X = rng.normal(size=(self.N, self.D))
        model.fit(X, TARGETS[self.y](rng, self.N, self.D))
        answered(np.isfinite(model.bound_), f"bound_ is {model.bound_}")
        ask(model, X[:12], self.question, self.how, rng)
        return f"predicted: {self.question}"


def _question(draw, estimator: str, plain: str) -> tuple[str, str]:
    asked = draw(mostly(plain, QUESTIONS))
    return asked, draw(st.sampled_from([repr(value) for value in QUESTIONS[asked]]))


@st.composite
def arrays(draw) -> Arrays:
    """A case of `Arrays`."""
    estimator = draw(st.sampled_from(["GPRegressor", "GPRegressor", "GPClassifier"]))
    classes = estimator == "GPClassifier"
    setups = ["exact", "single", "collapsed", "svgp", "ulapane", "kernel"] if classes else list(SETUPS)
    setup = draw(mostly("exact", setups))
    setup = tuple(pair for pair in SETUPS[setup] if not classes or of_classes(pair[0]))
    y = draw(mostly("yes and no" if classes else "positive", TARGETS))
    asked = _question(draw, estimator, "predict" if classes else "predict with std")
    weight, noise = draw(mostly("none", WEIGHTS)), "none" if classes else draw(mostly("none", NOISES))
    X, rows = draw(mostly("plain", INPUTS)), draw(mostly("plain", ROWS))
    N, D, number = draw(st.sampled_from([12, 24])), draw(st.sampled_from([2, 1, 3])), draw(st.integers(0, 2**16))
    return Arrays(estimator, setup, X, y, weight, noise, rows, *asked, N, D, number)


@st.composite
def several_settings(draw) -> Settings:
    """A case of `Settings`."""
    estimator = draw(st.sampled_from(["GPRegressor", "GPRegressor", "GPClassifier"]))
    classes = estimator == "GPClassifier"
    names = [name for name in SETTINGS if not classes or of_classes(name)]
    chosen = draw(st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True))
    wrong = draw(st.integers(0, 9)) == 0
    values = {name: list(SETTINGS[name]) + list(WRONG if wrong else []) for name in chosen}
    pairs = tuple((name, draw(st.sampled_from(values[name]))) for name in chosen)
    y = draw(st.sampled_from(["yes and no", "three classes"] if classes else ["plain", "counts", "unit", "levels"]))
    asked = _question(draw, estimator, "predict" if classes else "predict with std")
    return Settings(estimator, pairs, y, *asked, draw(st.sampled_from([12, 24])), 2)


KINDS: dict[str, st.SearchStrategy] = {
    "arrays": arrays(),
    "settings": several_settings(),
    "tables": tables(),
    "files": files(),
    "commands": commands(),
}
SHARES = {"arrays": 0.5, "settings": 0.2, "tables": 0.2, "files": 0.09, "commands": 0.01}


def shares(kind: str) -> dict[str, float]:
    """The share of all cases that each kind has."""
    return {name: SHARES[name] for name in KINDS} if kind == "all" else {kind: 1.0}
