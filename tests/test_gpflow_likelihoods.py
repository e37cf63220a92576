"""What GPflow 2.11 says of the same rows (`references/make_gpflow_likelihoods.py`), and why it differs where it does.

Four differences are by design; each is reproduced here by NumPy, so that nothing else hides in a tolerance:

- GPflow's probit is 1e-3 + 0.998 Φ(f), and so never further than log 1e-3 from certainty. Ours is not clipped.
- Its ordered classes have log(0.998 P + 1e-6), and the first and the last one are NaN, as are all predictions: erf(±∞)
  is NaN in its TensorFlow. Ours are finite.
- Its Student-t takes the rule of 20 Gauss–Hermite nodes for its expectation; ours is in closed form.
- Its predictions take 20 Gauss–Hermite nodes wherever there is no closed form; ours have about ten digits.
"""

# Fields take floats and NumPy arrays and become JAX arrays in `cast` or under jit; a type checker knows the last alone.
# pyright: reportArgumentType=false

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from likelihood_oracles import ordinal
from likelihood_rows import Rows, log_probabilities, resized, say
from scipy.stats import norm
from scipy.stats import t as student

from pseudopoint import likelihoods as l

STORED = json.loads((Path(__file__).parent / "references" / "gpflow_likelihoods.json").read_text(encoding="utf-8"))
CASES = STORED["likelihoods"]
MEAN, VARIANCE = (np.array(STORED["one"][name]) for name in ("mean", "variance"))
MEANS, VARIANCES = (np.array(STORED["several"][name]).T for name in ("mean", "variance"))  # ours are [C, N]

OURS: dict[str, Any] = {
    "student_t": l.StudentT,
    "bernoulli_probit": l.Bernoulli,
    "bernoulli_logit": l.Bernoulli,
    "poisson": l.Poisson,
    "gamma": l.Gamma,
    "exponential": l.Exponential,
    "beta": l.Beta,
    "ordinal": l.Ordinal,
    "robustmax": l.RobustMax,
}

# Relative to 1 or to the value. `expectation` is the same closed form or the same rule of 20 nodes, but
# Student-t's; the rest is the quadrature error of GPflow at √v ≤ 1, largest where p(y | f) is narrow in f.
TOLERANCES = {
    "student_t": dict(expectation=1e-5, log_density=1e-3, mean=1e-12, variance=1e-12),
    "bernoulli_logit": dict(expectation=1e-12, log_density=1e-7, mean=1e-7, variance=1e-7),
    "poisson": dict(expectation=1e-12, log_density=1e-3, mean=1e-9, variance=1e-9),
    "gamma": dict(expectation=1e-12, log_density=1e-5, mean=1e-9, variance=1e-9),
    "exponential": dict(expectation=1e-12, log_density=1e-6, mean=1e-9, variance=1e-9),
    "beta": dict(expectation=1e-12, log_density=1e-4, mean=1e-7, variance=1e-7),
}


@cache
def ours(name: str) -> Rows:
    case = CASES[name]
    f = (MEANS, VARIANCES) if name == "robustmax" else (MEAN, VARIANCE)
    return say(OURS[name](**case["parameters"]), *f, case["y"])


def stored(name: str, what: str) -> np.ndarray:
    """With NaN for null."""
    return np.array(CASES[name][what], float)


@pytest.mark.parametrize("what", ["expectation", "log_density", "mean", "variance"])
@pytest.mark.parametrize("name", TOLERANCES)
def test_agrees_with_gpflow(name, what):
    tolerance = TOLERANCES[name][what]
    np.testing.assert_allclose(getattr(ours(name), what), stored(name, what), rtol=tolerance, atol=tolerance)


def average(g: Any) -> np.ndarray:
    """E g(f) of the four rows by 20 Gauss–Hermite nodes, by NumPy."""
    x, w = np.polynomial.hermite_e.hermegauss(20)
    return g(MEAN[:, None] + np.sqrt(VARIANCE)[:, None] * x) @ (w / w.sum())


def test_student_t_differs_by_its_rule():
    y, p = np.array(CASES["student_t"]["y"])[:, None], CASES["student_t"]["parameters"]
    theirs = average(lambda f: student.logpdf(y, p["degrees"], f, p["scale"]))
    np.testing.assert_allclose(stored("student_t", "expectation"), theirs, rtol=1e-12)


def clipped_probit(f: Any) -> Any:
    return 1e-3 + 0.998 * norm.cdf(f)


def test_the_probit_differs_by_its_clip():
    sign = 2 * np.array(CASES["bernoulli_probit"]["y"]) - 1
    theirs = average(lambda f: np.log(clipped_probit(sign[:, None] * f)))
    np.testing.assert_allclose(stored("bernoulli_probit", "expectation"), theirs, rtol=1e-12)
    density = np.log(clipped_probit(sign * MEAN / np.sqrt(1 + VARIANCE)))
    np.testing.assert_allclose(stored("bernoulli_probit", "log_density"), density, rtol=1e-12)
    # unclipped, ours is near where nothing is clipped
    np.testing.assert_allclose(ours("bernoulli_probit").expectation, theirs, atol=0.3)
    np.testing.assert_allclose(ours("bernoulli_probit").mean, stored("bernoulli_probit", "mean"), atol=1e-3)
    np.testing.assert_allclose(
        np.exp(ours("bernoulli_probit").log_density), (np.exp(density) - 1e-3) / 0.998, rtol=1e-10
    )


def test_far_out_gpflow_is_clipped_and_we_are_not():
    theirs = STORED["far_out"]["bernoulli_probit"]["log_density"]
    np.testing.assert_allclose(theirs, np.log(1e-3), rtol=1e-12)
    rows = say(l.Bernoulli("probit"), [-30.0, 30.0], 1e-12, [1.0, 0.0])
    np.testing.assert_allclose(rows.log_density, norm.logcdf(-30.0), rtol=1e-10)


def test_the_ordered_classes_differ_by_their_clip_and_their_nan():
    edges, scale = (np.array(CASES["ordinal"]["parameters"][name]) for name in ("edges", "scale"))
    ends = np.concatenate([[-np.inf], edges, [np.inf]])
    p = lambda f: (
        norm.cdf((ends[1:, None] - f) / scale) - norm.cdf((ends[:-1, None] - f) / scale)
    )  # of class k in row k
    clip = lambda p: 0.998 * p + 1e-6
    inner = slice(1, 3)
    theirs = average(lambda f: np.log(clip(p(f))))
    np.testing.assert_allclose(stored("ordinal", "expectation")[inner], theirs[inner], rtol=1e-12)
    np.testing.assert_allclose(
        stored("ordinal", "log_density")[inner], np.log(average(lambda f: clip(p(f))))[inner], rtol=1e-12
    )
    # GPflow's quadrature of Φ at √v ≤ 1 is good to 1e-4
    np.testing.assert_allclose(np.exp(ours("ordinal").log_density), average(p), atol=1e-4)
    unclipped = average(lambda f: np.stack([ordinal(f[k], edges, float(scale)).log_p[k] for k in range(4)]))
    np.testing.assert_allclose(ours("ordinal").expectation, unclipped, rtol=1e-9)
    for what in ("expectation", "log_density"):
        np.testing.assert_array_equal(np.isnan(stored("ordinal", what)), [True, False, False, True])
    for what in ("mean", "variance"):
        assert np.isnan(stored("ordinal", what)).all()
    assert all(np.isfinite(a).all() for a in ours("ordinal"))


def test_robustmax_agrees_with_gpflow():
    # GPflow squashes every Φ to 1e-6 + (1 − 2e-6) Φ and takes 20 nodes everywhere, we do so in `expectation`; its
    # predicted mean is the probability of every class.
    np.testing.assert_allclose(ours("robustmax").expectation, stored("robustmax", "expectation"), rtol=1e-5)
    log_p = log_probabilities(l.RobustMax(3), resized(MEANS, 8), resized(VARIANCES, 8))
    np.testing.assert_allclose(np.exp(log_p)[:, :4].T, stored("robustmax", "mean"), atol=2e-3)
    np.testing.assert_allclose(ours("robustmax").log_density, stored("robustmax", "log_density"), atol=2e-3)
