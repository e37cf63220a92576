"""What every likelihood must do: the checks behind `conformance.LIKELIHOOD_CHECKS`, against `likelihood_oracles`.

A check takes a `Case`: the likelihood, its truth and the tolerance of its quadrature.
"""

# Fields take floats and NumPy arrays and become JAX arrays in `cast` or under jit; a type checker knows the last alone.
# pyright: reportArgumentType=false

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from likelihood_oracles import TRUTHS, Truth, panels
from likelihood_rows import (
    Points,
    cdfs,
    log_probabilities,
    log_probs,
    ordinary,
    points,
    predictive_cdfs,
    quantiles,
    say,
    targets,
    wide,
)
from scipy.special import expit

from pseudopoint.likelihoods import AbstractLikelihood
from pseudopoint.params import cast, trainable

Array = np.ndarray

# How far a rule with few nodes may be from the integral: of the value at variances to 0.5, and at 5; derivatives get
# ten times that. Where a closed form is claimed, rounding is all there is.
EXACT = (1e-11, 1e-11)


class Case(NamedTuple):
    """A likelihood, the number of its free parameters, and the tolerances of `expectation` at variances 0.5 and 5."""

    likelihood: Any
    parameters: int
    tolerance: tuple[float, float] = EXACT

    @property
    def truth(self) -> Truth:
        """Its distribution by SciPy."""
        return TRUTHS[type(self.likelihood).__name__](self.likelihood)


# --- the checks ------------------------------------------------------------------------------------------------------


def check_log_prob(case: Case) -> None:
    """log p(y | f) is SciPy's, at ordinary f and at |f| = 30: no tail is cut off."""
    likelihood = case.likelihood
    for size, rtol in ((1.5, 1e-12), (6.0, 1e-11), (30.0, 1e-10)):
        at = points(likelihood, (0.0, 0.0), size)
        ours = log_probs(likelihood, at.mean, at.y)
        truth = [case.truth.log_prob(f, y) for f, _, y in at.rows()]
        np.testing.assert_allclose(ours, np.ravel(truth), rtol=rtol, atol=rtol)


def check_log_prob_is_normalised(case: Case) -> None:
    likelihood = case.likelihood
    for f in (-1.7, 0.4):
        at = np.full((likelihood.latents, 1), f) + 0.3 * np.arange(likelihood.latents)[:, None]
        y, w = everything(likelihood, f)
        p = np.exp(log_probs(likelihood, at if likelihood.latents > 1 else at[0], y))
        np.testing.assert_allclose(w @ p, 1.0, rtol=1e-10 if likelihood.warped is None else 1e-9)


def everything(likelihood: Any, f: float) -> tuple[Array, Array]:
    """All values of y, or nodes, and their weights: infinite ranges are cut where nothing is left."""
    reach = np.geomspace(1e-9, 1e9, 217)
    if likelihood.support == "real":
        return panels(np.concatenate([f - reach[::-1], [f], f + reach]))
    if likelihood.support == "positive":
        return panels(np.geomspace(1e-40, 1e4, 400))
    if likelihood.support == "unit":
        t, w = panels(np.linspace(-300, 36, 700))
        return expit(t), w * expit(t) * expit(-t)
    K = likelihood.classes if likelihood.support == "classes" else 2000
    return np.arange(float(K)), np.ones(K)


def check_expectation(case: Case) -> None:
    for where, tolerance in zip((ordinary, wide), case.tolerance, strict=True):
        check_expectation_at(case, where(case.likelihood), tolerance)


def check_expectation_at(case: Case, at: Points, tolerance: float) -> None:
    """The value and its slopes, to `tolerance` of the value or of 1; slopes to ten times that."""
    ours = say(case.likelihood, *at)
    truth = np.array([case.truth.expectation(*row) for row in at.rows()])
    C = case.likelihood.latents
    np.testing.assert_allclose(ours.expectation, truth[:, 0], rtol=tolerance, atol=tolerance)
    for slopes, true in ((ours.in_mean, truth[:, 1 : C + 1]), (ours.in_variance, truth[:, C + 1 :])):
        known = np.isfinite(true)
        slopes = slopes.reshape(C, -1).T
        np.testing.assert_allclose(slopes[known], true[known], rtol=10 * tolerance, atol=10 * tolerance)


def check_log_density(case: Case) -> None:
    for where, of_tails in ((ordinary, 1e-6), (wide, 1e-4)):
        tolerance = of_tails if case.likelihood.heavy_tails else integrals(case.likelihood)
        check_log_density_at(case, where(case.likelihood), tolerance)


def check_log_density_at(case: Case, at: Points, tolerance: float) -> None:
    truth = np.array([case.truth.log_density(*row) for row in at.rows()])
    ours = say(case.likelihood, *at).log_density
    # Heteroscedastic at e^{−10⁸}: its integrand has two tops there, and ours sees the one at the mean.
    rtol = np.where(truth < -1e7, 0.02, tolerance)
    assert (np.abs(ours - truth) <= tolerance + rtol * np.abs(truth)).all(), (ours, truth)


def check_log_density_far_out(case: Case) -> None:
    """|mean| to 30, and variances from 1e-6 to 400."""
    check_log_density_at(case, *far_out(case.likelihood))


def integrals(likelihood: AbstractLikelihood) -> float:
    """How precise predictions are: those of Softmax take 40 Gauss–Hermite nodes, at √v to 2.2 here, and those of a warp
    as many, over a map whose second derivative may jump at 0."""
    return 2e-4 if likelihood.warped is not None else 1e-7 if likelihood.name == "Softmax" else 1e-9


def far_out(likelihood: AbstractLikelihood) -> tuple[Points, float]:
    """Points, and what precision is promised there."""
    name = likelihood.name
    # E e^{−f}-like peaks of Beta's density lie beyond its tails' digits; Softmax's inner rule is made for √v ≤ 5, and
    # its truth for v ≤ 5. A log scale of heavy tails has fixed nodes, and its
    # truth no digits of a peak whose scale is e^{−30}.
    tolerance = {"Beta": 1e-6, "Softmax": 1e-6, "HeteroscedasticStudentT": 1e-4}.get(name, 1e-9)
    variances = (1e-6, 1.0, 4.0) if name in ("Softmax", "HeteroscedasticStudentT") else (1e-6, 1.0, 400.0)
    return points(likelihood, variances, 8.0 if likelihood.heavy_tails else 30.0), tolerance


def check_predictive_moments(case: Case) -> None:
    for at in (ordinary(case.likelihood), wide(case.likelihood)):
        ours = say(case.likelihood, *at)
        keep = slice(None, None, 3 if case.likelihood.latents == 1 else 1)  # y does not matter
        truth = np.array([case.truth.predict(m, v) for m, v, _ in at.rows()[keep]])
        tolerance = integrals(case.likelihood)
        np.testing.assert_allclose(ours.mean[keep], truth[:, 0], rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(ours.variance[keep], truth[:, 1], rtol=tolerance, atol=tolerance)


def check_finite_far_out(case: Case) -> None:
    """Everything at |f| = 30, in both precisions, also at no variance."""
    C = case.likelihood.latents
    for dtype in (np.float64, np.float32):
        for variance in (0.0, 1e-6, 4.0):
            signs = np.resize([1.0, -1.0, -1.0], (C, 6))
            signs[:, 3:] *= -1
            mean = 30 * (signs if C > 1 else signs[0])
            rows = say(case.likelihood, mean, variance + 0 * mean, np.repeat(targets(case.likelihood), 2), dtype)
            for name, leaf in rows._asdict().items():
                assert leaf.dtype == dtype
                assert np.isfinite(leaf).all(), (name, dtype, variance)


def curvatures(case: Case, over_rounding: bool = True) -> Array:
    """Second differences of log p(y | f) in every latent function, over rounding."""
    likelihood, h = case.likelihood, 0.125
    f = np.arange(-12, 12 + h, h)
    out = []
    for y in targets(likelihood):
        for c in range(min(likelihood.latents, 3)):
            at = np.full((likelihood.latents, len(f)), 0.3) * np.arange(likelihood.latents)[:, None]
            at[c] = f
            L = log_probs(likelihood, at if likelihood.latents > 1 else f, np.array([y]))
            out.append(np.diff(L, 2) / (np.maximum(1.0, np.abs(L[1:-1])) if over_rounding else h**2))
    return np.concatenate(out)


def check_curvature_is_no_more_than_declared(case: Case) -> None:
    likelihood = case.likelihood
    steepest = -curvatures(case, over_rounding=False).min()
    assert steepest <= likelihood.curvature
    if np.isfinite(likelihood.curvature):  # and no idle promise
        assert steepest > likelihood.curvature / 5


def check_concave_as_declared(case: Case) -> None:
    likelihood = case.likelihood
    assert (curvatures(case).max() <= 1e-13) == likelihood.concave
    if likelihood.concave:
        for at in (ordinary(likelihood), wide(likelihood), points(likelihood, (1e-4, 50.0), 8.0)):
            rows = say(likelihood, *at)
            assert (rows.in_variance <= 1e-10 * np.maximum(1.0, np.abs(rows.in_variance))).all()
    else:
        assert curvatures(case).max() > 1e-4


def check_majoriser(case: Case) -> None:
    """ω ≥ β = −2 ∂E/∂variance, and ω ≥ 0, up to the error of the two rules."""
    for at, tolerance in zip((ordinary(case.likelihood), wide(case.likelihood)), case.tolerance, strict=True):
        rows = say(case.likelihood, *at)
        assert np.isfinite(rows.majoriser).all() and (rows.majoriser >= 0).all()
        beta = -2 * rows.in_variance
        assert (rows.majoriser >= beta - 10 * tolerance * np.maximum(1.0, np.abs(beta))).all()


def check_cdf(case: Case) -> None:
    """SciPy's, and its slope is the density."""
    likelihood = case.likelihood
    if likelihood.support == "classes" or likelihood.latents > 1:
        return
    at = points(likelihood, (0.0,), 2.1)
    cdf = lambda y: np.asarray(cdfs(likelihood, jnp.asarray(at.mean), jnp.asarray(y)))
    assert case.truth.cdf is not None
    truth = [case.truth.cdf(f, y) for f, _, y in at.rows()]
    np.testing.assert_allclose(cdf(at.y), truth, rtol=1e-9, atol=1e-14)
    if likelihood.support != "counts":
        h = 1e-4 * np.minimum(np.abs(at.y), 0.1)
        near, far = (cdf(at.y + k * h) - cdf(at.y - k * h) for k in (1, 2))
        density = np.exp(log_probs(likelihood, at.mean, at.y))
        np.testing.assert_allclose((8 * near - far) / (12 * h), density, rtol=1e-6, atol=1e-9)


LEVELS = (0.001, 0.05, 0.5, 0.95, 0.999)


def check_quantile(case: Case) -> None:
    """It inverts the predictive cdf, by the truth: of counts and classes, the smallest with at least p below."""
    likelihood, at = case.likelihood, points(case.likelihood, (0.3, 2.0), 1.0)
    mean, variance = (a[..., [0, -1, 0, -1, 0]] for a in (at.mean, at.variance))
    q = np.asarray(quantiles(likelihood, *(jnp.asarray(a) for a in (mean, variance, np.array(LEVELS)))))
    for i, (y, p) in enumerate(zip(q, LEVELS, strict=True)):
        below = predictive(case, mean[..., i], variance[..., i])
        if likelihood.support in ("counts", "classes"):
            assert y >= 0 and y == np.round(y)
            assert below(y) >= p - 1e-8
            assert y == 0 or below(y - 1) < p + 1e-8
        else:
            step = 1e-9 * abs(y)
            upper = y + step if likelihood.support != "unit" else min(y + step, 1.0)  # p may lie beyond 1 − eps
            # The rule for distribution functions has some 180 nodes: seven digits of p, or of 1.
            assert below(y - step) <= p + 1e-7 and below(upper) >= p - 1e-7


def predictive(case: Case, mean: Any, variance: Any) -> Callable[[float], float]:
    """P(Y ≤ y), f integrated out."""
    truth, of = case.truth, case.truth.predictive_cdf
    if of is None:
        return lambda y: float(sum(np.exp(truth.log_density(mean, variance, k)) for k in range(int(y) + 1)))
    return lambda y: float(of(mean, variance, y))


def check_predictive_cdf(case: Case) -> None:
    likelihood, at = case.likelihood, ordinary(case.likelihood)
    of = case.truth.predictive_cdf
    if of is None or likelihood.name == "Bernoulli":
        return  # of classes, `quantile` sums probabilities
    rows = slice(None, None, 1 if likelihood.latents > 1 else 4)
    ours = predictive_cdfs(likelihood, *(jnp.asarray(a[..., rows]) for a in at))
    truth = [of(*row) for row in at.rows()[rows]]
    np.testing.assert_allclose(ours, truth, rtol=0, atol=1e-7)


def check_class_probabilities(case: Case) -> None:
    """They sum to one, and are those of `log_density`, also far out."""
    likelihood = case.likelihood
    if not likelihood.support == "classes":
        return
    far = points(likelihood, (1e-6, 4.0), 30.0)
    for at in (points(likelihood, (0.5, 4.0)), far):
        log_p = np.asarray(log_probabilities(likelihood, jnp.asarray(at.mean), jnp.asarray(at.variance)))
        assert log_p.shape == (likelihood.classes, len(at.y))
        np.testing.assert_allclose(np.exp(log_p).sum(axis=0), 1.0, rtol=1e-9)
        chosen = log_p[at.y.astype(int), np.arange(len(at.y))]
        np.testing.assert_allclose(say(likelihood, *at).log_density, chosen, rtol=1e-12, atol=1e-14)


def check_parameters(case: Case) -> None:
    """The vector holds what is learned and nothing else; the way back gives the same likelihood, in both precisions."""
    for dtype, rtol in ((np.float64, 1e-12), (np.float32, 1e-5)):
        likelihood = cast(case.likelihood, dtype)
        of = trainable(likelihood)
        assert of.vector.shape == (case.parameters,)
        again = of.rebuild(of.vector)
        assert jax.tree.structure(again) == jax.tree.structure(likelihood)
        for old, new in zip(jax.tree.leaves(likelihood), jax.tree.leaves(again), strict=True):
            assert new.dtype == dtype
            np.testing.assert_allclose(new, old, rtol=rtol)
        # each free number matters to what is learned, and no other moves
        moved = jax.tree.leaves(of.rebuild(of.vector + 0.1))
        changed = sum(int(np.sum(np.asarray(a) != b)) for a, b in zip(moved, jax.tree.leaves(likelihood), strict=True))
        assert changed == case.parameters


WEIGHTS_AND_RESIDUALS = ((1.0, 0.5), (3.0, 0.01), (0.5, 20.0), (1.0, 0.0), (0.0, 0.5))


def tight_term(likelihood: AbstractLikelihood, v: float, weight: float, d: float) -> float:
    """The bound's term of one row as a function of v: w E[log p(y | f)] − ½(v − 1 − log v)."""
    fit = float(say(likelihood, 1.0, v * d, 1.0).expectation[0])
    return weight * fit - 0.5 * (v - 1 - np.log(v))


def check_shrinkage_never_loosens_the_bound(case: Case) -> None:
    likelihood = case.likelihood
    if type(likelihood).__name__ != "Gaussian":
        rows = say(likelihood, *ordinary(likelihood))
        np.testing.assert_array_equal(rows.shrinkage, np.ones_like(rows.shrinkage))
        return
    for weight, d in WEIGHTS_AND_RESIDUALS:
        v = float(say(likelihood, 0.0, d, weight).shrinkage[0])
        assert 0 < v <= 1
        assert tight_term(likelihood, v, weight, d) >= tight_term(likelihood, 1.0, weight, d)


def check_additive_as_declared(case: Case) -> None:
    """E[y | f] is the first latent function, but for a constant, where it is declared and nowhere else."""
    likelihood, f = case.likelihood, np.linspace(-1.5, 2.0, 7)
    if likelihood.support == "classes":
        assert not likelihood.additive
    else:
        mean = likelihood.moments(jnp.asarray(f if likelihood.latents == 1 else [f, -f])).mean
        assert likelihood.additive == (np.ptp(mean - f) < 1e-12)


LIKELIHOOD_CHECKS = (
    check_additive_as_declared,
    check_log_prob,
    check_log_prob_is_normalised,
    check_expectation,
    check_log_density,
    check_log_density_far_out,
    check_predictive_moments,
    check_finite_far_out,
    check_concave_as_declared,
    check_curvature_is_no_more_than_declared,
    check_majoriser,
    check_cdf,
    check_predictive_cdf,
    check_quantile,
    check_class_probabilities,
    check_parameters,
    check_shrinkage_never_loosens_the_bound,
)
