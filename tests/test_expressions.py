"""Kernels in words: what they say is the kernel that objects say, in Python and on the command line."""

from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from pseudopoint import GPClassifier, GPRegressor
from pseudopoint.cli import app
from pseudopoint.kernels import RBF, ArcCosine, Constant, Cosine, Hamming, Linear, Matern52, Periodic, Polynomial, White
from pseudopoint.starts.expressions import expressed, is_expression

pytestmark = pytest.mark.edge
EXACT: dict[str, Any] = {"method": "exact", "max_iter": 8}
SCALE = np.array([2.0, 5.0, np.inf])
COLUMNS = {"day": (0,), "town": (1, 2), "day of week": (1,)}
ROOT3 = np.full(3, 3**0.5)


def read(text):
    return expressed(text, COLUMNS, SCALE, 1.0)


def linear(D, variance):
    return Linear(np.full(D, variance / D)) + Constant(variance)


@pytest.mark.parametrize(
    "text, kernel",
    [
        ("matern52 + rbf", Matern52(ROOT3, 0.5) + RBF(ROOT3, 0.5)),
        ("matern52(day)", Matern52([1.0], 1.0).on(0)),
        ("rbf(day, 30)", RBF([15.0], 1.0).on(0)),
        ("rbf(2)", RBF([1.0, 0.4, 2.0], 1.0)),
        ("periodic(day, 7)", Periodic([1.0], 1.0, [3.5]).on(0)),
        ("rbf(town)", RBF(np.full(2, 2**0.5), 1.0).on(1, 2)),
        ("rbf('day of week', 10)", RBF([2.0], 1.0).on(1)),
        ("periodic(day, 7) * rbf(day, 60)", Periodic([1.0], 1.0, [3.5]).on(0) * RBF([30.0], 1.0).on(0)),
        ("cosine(day, 7)", Cosine([3.5], 1.0).on(0)),
        ("polynomial(town)", Polynomial([0.25, 0.25], 0.5).on(1, 2)),
        ("hamming + arc_cosine", Hamming([3.0, 3, 3], 0.5) + ArcCosine(np.full(3, 1 / 12), 0.25)),
        ("(linear(day) + white(0.1)) * rbf", (linear(1, 0.5).on(0) + White(0.1)) * RBF(ROOT3, 1.0)),
        ("rbf(day) + constant + rbf(day)", RBF([1.0], 1 / 3).on(0) + Constant(1 / 3) + RBF([1.0], 1 / 3).on(0)),
    ],
)
def test_words_say_what_objects_say(text, kernel):
    found = read(text)
    assert jax.tree.structure(jax.tree.map(np.shape, found)) == jax.tree.structure(jax.tree.map(np.shape, kernel))
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(kernel), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@pytest.mark.parametrize(
    "text, message",
    [
        ("matern52 +", "cannot be read: write words such as"),
        ("matern52 + cubic(day)", r"has 'cubic\(day\)', which is no kernel: use matern52"),
        ("matern52 - rbf", "has 'matern52 - rbf', which is no kernel"),
        ("rbf(week)", "names week, but the columns are day, town, day of week"),
        ("rbf(day, 1, 2)", "rbf takes columns and then one positive number"),
        ("periodic(day, 0)", "one positive number"),
        ("rbf(day, -1)", "names -1"),
        ("linear(day, 2)", "linear takes columns alone"),
        ("hamming(day, 2)", "hamming takes columns alone"),
        ("white(day)", "white takes a number alone"),
        ("__import__('os').system('x')", "which is no kernel"),
    ],
)
def test_what_is_no_kernel_is_refused_in_one_sentence(text, message):
    assert is_expression(text)
    with pytest.raises(ValueError, match=message):
        read(text)


def weekly(days=80):
    rng = np.random.default_rng(1)
    day = np.arange(days)
    y = 3 * np.sin(2 * np.pi * day / 7) + 0.05 * day + rng.normal(size=days) / 2
    return pd.DataFrame({"day": pd.Timestamp("2024-01-01") + pd.to_timedelta(day, "D"), "y": y})


WORDS = "periodic(day, 7) + linear(day)"


def test_an_expression_forecasts_from_the_command_line_as_in_python(tmp_path):
    frame, settings = weekly(), EXACT
    frame.to_csv(tmp_path / "t.csv", index=False)
    options = ["--kernel", WORDS, "--method", "exact", "--max-iter", "8", "--test-last", "0.25", "--no-refit"]
    options += ["--out", str(tmp_path / "m"), "--json"]
    done = CliRunner().invoke(app, ["fit", str(tmp_path / "t.csv"), "--target", "y", *options])
    assert done.exit_code == 0, done.output
    early, late = frame[:60], frame[60:]
    model = GPRegressor(WORDS, **settings).fit(early[["day"]], early["y"])
    np.testing.assert_array_equal(GPRegressor.load(tmp_path / "m").predict(late), mean := model.predict(late[["day"]]))
    rmse = np.sqrt(np.mean((late["y"] - mean) ** 2))
    assert rmse < 0.6  # the noise is 0.5
    assert model.kernel == WORDS
    array = GPRegressor("periodic(x0, 7) + linear(x0)", **settings).fit(np.arange(60.0)[:, None], early["y"])
    np.testing.assert_allclose(array.predict(np.arange(60.0, 80)[:, None]), mean, rtol=1e-6)


def test_expressions_are_for_classes_too_and_faults_are_sentences(tmp_path):
    frame = weekly()
    model = GPClassifier("periodic(day, 7) * rbf(day)", method="laplace", max_iter=3)
    assert model.fit(frame[["day"]], frame["y"] > 3).score(frame[["day"]], frame["y"] > 3) > 0.7
    with pytest.raises(ValueError, match="names week, but the columns are day"):
        GPRegressor("rbf(week)").fit(frame[["day"]], frame["y"])
    with pytest.raises(ValueError, match="kernel='se' is unknown"):
        GPRegressor("se").fit(frame[["day"]], frame["y"])
    frame.to_csv(tmp_path / "t.csv", index=False)
    done = CliRunner().invoke(app, ["fit", str(tmp_path / "t.csv"), "--target", "y", "--kernel", "rbf(week)"])
    assert isinstance(done.exception, ValueError) and "names week" in str(done.exception)
