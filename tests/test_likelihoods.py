"""Likelihoods: one conformance suite for all against SciPy and dense quadrature, and what is special to one of them.

Those of classes meet the suite in `test_likelihoods_of_classes.py`: a file is what a core takes.
"""

# Fields take floats and NumPy arrays and become JAX arrays in `cast` or under jit; a type checker knows the last alone.
# pyright: reportArgumentType=false

from inspect import isabstract, isclass
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance import LIKELIHOOD_CHECKS, LIKELIHOODS, LIKELIHOODS_OF_CLASSES
from likelihood_checks import WEIGHTS_AND_RESIDUALS, tight_term
from likelihood_oracles import panels
from likelihood_rows import ROWS, Rows, say
from oracles import expect_normal
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, logsumexp
from scipy.stats import multivariate_normal, norm, t

from pseudopoint import likelihoods, warps
from pseudopoint.data import dataset
from pseudopoint.likelihoods import (
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
    Offset,
    Ordinal,
    Poisson,
    RobustMax,
    Softmax,
    StudentT,
)
from pseudopoint.params import cast, trainable


@pytest.mark.parametrize("check", LIKELIHOOD_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", [name for name in LIKELIHOODS if name not in LIKELIHOODS_OF_CLASSES])
def test_conformance(name, check):
    check(LIKELIHOODS[name]())


def test_every_likelihood_of_the_package_is_in_the_conformance_list():
    public = vars(likelihoods).values()
    classes = {c for c in public if isclass(c) and issubclass(c, AbstractLikelihood) and not isabstract(c)}
    known = {type(make().likelihood) for make in LIKELIHOODS.values()}
    # One is an Offset at rows (tests/test_means.py), and two predict alone (tests/test_near_rows.py, _classes.py).
    assert known | {likelihoods.Around, likelihoods.WithNearRows, likelihoods.WithNearClasses} == classes


F, V, Y = np.array([0.0, -1.3, 2.4, 30.0]), np.array([1e-3, 0.7, 5.0, 0.2]), np.array([0.3, 0.1, 2.3, -30.0])


@pytest.mark.parametrize("variance", [1e-8, 0.3, 1e4])
def test_gaussian_densities_are_those_of_scipy(variance):
    rows = say(Gaussian(variance), F, V, Y)
    np.testing.assert_allclose(rows.log_prob, norm.logpdf(Y, F, np.sqrt(variance)), rtol=1e-13)
    np.testing.assert_allclose(rows.log_density, norm.logpdf(Y, F, np.sqrt(V + variance)), rtol=1e-13)
    np.testing.assert_array_equal(rows.mean, F)
    np.testing.assert_allclose(rows.variance, V + variance, rtol=1e-15)


def test_known_noise_adds_to_that_of_the_likelihood_row_by_row():
    noise = np.array([0.0, 0.2, 1.0, 5.0])
    rows = dataset(np.zeros((ROWS, 1)), np.zeros(ROWS), noise=np.resize(noise, ROWS))
    ours = say(Gaussian(0.3).at(rows), F, V, Y)
    for i, extra in enumerate(noise):
        alone = say(Gaussian(0.3 + extra), F[i], V[i], Y[i])
        for name in ("log_prob", "expectation", "log_density", "mean", "variance", "shrinkage"):
            np.testing.assert_allclose(getattr(ours, name)[i], getattr(alone, name)[0], rtol=1e-14)


@pytest.mark.parametrize("weight, d", WEIGHTS_AND_RESIDUALS)
@pytest.mark.parametrize("name", ["gaussian", "gaussian_small_noise"])
def test_the_gaussian_shrinkage_is_the_maximiser_of_the_bound(name, weight, d):
    likelihood: Any = LIKELIHOODS[name]().likelihood
    v = float(say(likelihood, 0.0, d, weight).shrinkage[0])
    loss = lambda log_v: -tight_term(likelihood, float(np.exp(log_v)), weight, d)
    best: Any = minimize_scalar(loss, bounds=(-16.0, 1.0), method="bounded", options={"xatol": 1e-10})
    np.testing.assert_allclose(np.log(v), best.x, atol=1e-6)  # the optimum is flat: √eps
    assert loss(np.log(v)) <= best.fun + 1e-14 * abs(best.fun)
    # there, w d/(2σ²) v − ½(v − 1 − log v) is ½ log(1 + w d/σ²): Titsias 2025
    gain = tight_term(likelihood, v, weight, d) - tight_term(likelihood, 1.0, weight, d)
    x = weight * d / float(likelihood.variance)
    np.testing.assert_allclose(gain, 0.5 * (x - np.log1p(x)), rtol=1e-9, atol=1e-12)


def test_nothing_shrinks_where_there_is_no_residual_or_no_weight():
    assert say(Gaussian(0.3), 0.0, 0.0, 1.0).shrinkage[0] == 1.0
    assert say(Gaussian(0.3), 0.0, 2.0, 0.0).shrinkage[0] == 1.0


@pytest.mark.parametrize("variance", [0.0, -0.1, np.nan, np.inf])
def test_a_noise_variance_that_is_not_positive_is_refused(variance):
    with pytest.raises(ValueError, match="^variance=.* must be positive and finite"):
        Gaussian(variance)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_the_representation_of_a_likelihood_evaluates_to_it(name):
    likelihood = LIKELIHOODS[name]().likelihood
    again = eval(repr(likelihood), vars(warps) | vars(likelihoods))
    assert jax.tree.structure(again) == jax.tree.structure(likelihood)
    for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(likelihood), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_a_likelihood_is_printed_with_its_numbers():
    assert str(StudentT(0.123456, 4.0)) == "StudentT(scale=0.1235, degrees=4.0)"
    assert str(Offset(Bernoulli(), 0.3)) == "Offset(likelihood=Bernoulli(link='logit'), constant=0.3)"
    edges = "[0.0, 1.0, 2.5], scale=1.0, learn_edges=False, learn_scale=True"
    assert str(Ordinal([0.0, 1.0, 2.5])) == f"Ordinal(edges={edges})"


# --- what is special to one of them ----------------------------------------------------------------------------------

FAR = np.array([-30.0, -8.0, 8.0, 30.0])


def same(a: Rows, b: Rows, rtol: float, *names: str) -> None:
    for name in names:
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=rtol, atol=1e-12, err_msg=name)


SAID = ("log_prob", "expectation", "in_mean", "in_variance", "log_density", "mean", "variance")


def test_the_probits_tails_are_not_clipped():
    # log Φ(−30), of which Φ = 4.9e-198; GPflow's is log 1e-3 there
    rows = say(Bernoulli("probit"), FAR, 0 * FAR, 1.0)
    np.testing.assert_allclose(rows.log_prob, norm.logcdf(FAR), rtol=1e-11, atol=1e-15)
    np.testing.assert_allclose(rows.log_prob[0], -454.3212439563, rtol=1e-12)
    np.testing.assert_allclose(rows.log_density, norm.logcdf(FAR), rtol=1e-11, atol=1e-15)
    # and its slope φ/Φ → |f|: a wrong label far out keeps pulling
    np.testing.assert_allclose(rows.in_mean, np.exp(norm.logpdf(FAR) - norm.logcdf(FAR)), rtol=1e-5, atol=1e-15)


def test_the_logits_tails_are_not_clipped():
    rows = say(Bernoulli(), FAR, 0 * FAR, 1.0)
    np.testing.assert_allclose(
        rows.log_prob, [-30 - np.exp(-30), -8.00033540637, -3.3540637e-4, -np.exp(-30)], rtol=1e-7
    )
    np.testing.assert_allclose(rows.in_mean, 1 / (1 + np.exp(FAR)), rtol=1e-6)


def test_ordered_classes_keep_their_tails_on_both_sides():
    likelihood = Ordinal([-1.0, 0.2, 1.3], 0.6)
    first, last = (say(likelihood, f, 0.0, y).log_prob[0] for f, y in ((30.0, 0.0), (-30.0, 3.0)))
    np.testing.assert_allclose([first, last], norm.logcdf([-31 / 0.6, -31.3 / 0.6]), rtol=1e-12)


def test_the_two_ends_of_51_bins_hold_what_is_beyond():
    likelihood = LIKELIHOODS["ordinal_51_bins"]().likelihood
    assert likelihood.classes == 51
    np.testing.assert_allclose(likelihood.edges(), np.linspace(-2, 2, 50), rtol=0, atol=1e-14)
    rows = say(likelihood, [-2.5, 0.0, 2.5], 0.01, [0.0, 25.0, 50.0])
    assert rows.mean[0] < 0.2 and rows.mean[2] > 49.8
    np.testing.assert_allclose(rows.mean[0] + rows.mean[2], 50.0, rtol=1e-12)
    np.testing.assert_allclose(rows.mean[1], 25.0, rtol=1e-12)


def test_two_ordered_classes_are_a_probit():
    same(say(Ordinal([0.0]), F, V, [0, 1, 1, 0]), say(Bernoulli("probit"), F, V, [0, 1, 1, 0]), 1e-11, *SAID)


def test_a_scaled_and_shifted_edge_is_a_scaled_and_shifted_latent_function():
    a = say(Ordinal([0.7], 2.0), 0.7 + 2 * F, 4 * V, [0, 1, 1, 0])
    same(a, say(Bernoulli("probit"), F, V, [0, 1, 1, 0]), 1e-11, "log_prob", "expectation", "log_density", "mean")


@pytest.mark.parametrize("nu, s", [(3.0, 0.5), (8.0, 1.0)])
def test_the_majoriser_of_student_t_is_the_precision_of_its_scale_mixture(nu, s):
    mean, variance, y = (
        np.array([0.0, 1.0, -2.0, 5.0]),
        np.array([0.05, 0.02, 0.08, 0.1]),
        np.array([0.2, 4.0, -2.0, 5.5]),
    )
    ours = say(StudentT(s, nu), mean, variance, y).majoriser
    for i in range(4):
        weight = lambda f, i=i: (nu + 1) / (nu * s**2 + (y[i] - f) ** 2)
        np.testing.assert_allclose(ours[i], expect_normal(weight, mean[i], variance[i]), rtol=1e-10)


def test_the_majoriser_of_student_t_bounds_its_expectation_from_below():
    # E log p at another mean is at least that at this one, with its slope, less ½ ω times the square of the step.
    likelihood = StudentT(0.5, 3.0)
    step = np.array([-6.0, -1.0, 1.0, 6.0])
    for y in (0.0, 0.7, 4.0):
        here, there = say(likelihood, 0.0, 0.05, y), say(likelihood, step, 0.05, y)
        bound = here.expectation[0] + here.in_mean[0] * step - 0.5 * here.majoriser[0] * step**2
        assert (there.expectation >= bound - 1e-9).all()


def test_student_t_with_many_degrees_is_nearly_gaussian():
    same(say(StudentT(0.5, 1e7), MEANS, SMALL, 0.3), say(Gaussian(0.25), MEANS, SMALL, 0.3), 1e-5, *SAID)


def test_laplace_without_scale_is_absolute_error():
    # E|y − f| alone, where the mean is y: √(2v/π)
    rows = say(Laplace(0.5), 1.0, [0.04, 1.0, 9.0], 1.0)
    np.testing.assert_allclose(rows.expectation, -np.sqrt(2 * np.array([0.04, 1.0, 9.0]) / np.pi) / 0.5, rtol=1e-13)


MEANS, SMALL = np.array([-0.4, 0.1, 0.3, 1.2]), np.array([0.01, 0.05, 0.1, 0.02])


@pytest.mark.parametrize("f2", [-1.0, 0.0, 0.8])
def test_heteroscedastic_is_gaussian_where_the_noise_is_known(f2):
    mean, variance = np.stack([F, 0 * F + f2]), np.stack([V, 0 * V])
    a, b = say(Heteroscedastic(0.5), mean, variance, Y), say(Gaussian(0.25 * np.exp(2 * f2)), F, V, Y)
    same(a, b, 1e-8, "log_prob", "expectation", "log_density", "mean", "variance")
    np.testing.assert_allclose(a.in_mean[0], b.in_mean, rtol=1e-12)
    np.testing.assert_allclose(a.in_variance[0], b.in_variance, rtol=1e-12)
    np.testing.assert_allclose(a.majoriser[0], b.majoriser, rtol=1e-12)


def test_the_majoriser_of_heteroscedastic():
    mean, variance = np.array([[0.0, 1.0, -1.0], [-0.3, 0.2, 0.5]]), np.array([[0.1, 0.01, 0.4], [0.2, 0.3, 0.1]])
    s, y = 0.5, np.array([0.01, 1.0, 3.0])
    rows = say(Heteroscedastic(s), mean, variance, y)
    for i in range(3):
        precision = expect_normal(lambda f: np.exp(-2 * f) / s**2, mean[1, i], variance[1, i])
        beta = 2 * precision * ((y[i] - mean[0, i]) ** 2 + variance[0, i])
        np.testing.assert_allclose(rows.majoriser[:, i], [precision, max(beta, 2.0)], rtol=1e-11)
        np.testing.assert_allclose(-2 * rows.in_variance[:, i], [precision, beta], rtol=1e-11)
    assert (rows.majoriser[1] == 2).any() and (rows.majoriser[1] > 2).any()


def test_the_heteroscedastic_density_is_a_sum_over_both_latent_functions():
    mean, variance, y, s = np.array([0.4, -0.2]), np.array([0.3, 0.5]), 1.5, 0.4
    t, w = panels(np.linspace(-9, 9, 60))
    w = w * norm.pdf(t)
    f = mean[:, None] + np.sqrt(variance)[:, None] * t
    truth = w @ norm.pdf(y, f[0][:, None], s * np.exp(f[1])) @ w
    ours = say(Heteroscedastic(s), mean[:, None], variance[:, None], y).log_density[0]
    np.testing.assert_allclose(ours, np.log(truth), rtol=1e-10)


def test_negative_binomial_of_a_large_shape_is_poisson():
    rate, y = np.array([-1.0, 0.0, 1.0, 2.0]), np.array([0.0, 1.0, 3.0, 9.0])
    same(say(NegativeBinomial(1.7, 1e8), rate, SMALL, y), say(Poisson(1.7), rate, SMALL, y), 1e-5, *SAID)


def test_gamma_of_shape_one_is_exponential():
    y = np.array([0.02, 1.0, 3.0, 9.0])
    same(say(Gamma(1.7, 1.0), F, V, y), say(Exponential(1.7), F, V, y), 1e-11, *SAID)


@pytest.mark.parametrize("name", ["poisson", "negative_binomial", "gamma", "exponential"])
def test_a_scale_is_a_shift_of_the_latent_function(name):
    scaled: Any = LIKELIHOODS[name]().likelihood
    plain = eqx.tree_at(lambda l: l.scale, scaled, np.asarray(1.0))
    a, b = say(scaled, MEANS, SMALL, 2.0), say(plain, MEANS + np.log(1.7), SMALL, 2.0)
    same(a, b, 1e-9, *SAID)


def test_softmax_of_two_is_the_logit_of_their_difference():
    mean, variance = np.stack([MEANS, -F / 10]), np.stack([SMALL, V])
    y = np.array([0.0, 1.0, 1.0, 0.0])
    a, b = say(Softmax(2), mean, variance, y), say(Bernoulli(), mean[1] - mean[0], variance.sum(axis=0), y)
    same(a, b, 3e-6, "log_prob", "expectation", "log_density", "mean", "variance")  # against 20 nodes, at v = 5
    np.testing.assert_allclose(a.in_mean, np.stack([-b.in_mean, b.in_mean]), atol=3e-5)


def test_softmax_does_not_see_a_shift():
    mean, variance = np.random.default_rng(1).normal(size=(2, 3, 4))
    mean, variance = 2 * mean, np.abs(variance)
    a, b = (say(Softmax(3), mean + shift, variance, 1.0) for shift in (0.0, 100.0))
    same(a, b, 1e-9, "log_prob", "expectation", "in_mean", "log_density", "mean", "variance")
    np.testing.assert_allclose(a.in_mean.sum(axis=0), 0.0, atol=1e-7)


def test_the_majoriser_of_softmax_is_above_the_curvature_of_all_members_together():
    mean = np.array([[0.3, -1.0, 0.2], [0.4, 0.0, 1.1], [0.2, 3.0, -0.5]])
    variance = np.array([[0.2, 0.5, 0.1], [0.1, 0.4, 0.2], [0.3, 0.3, 0.3]])
    ours = say(Softmax(3), mean, variance, 1.0).majoriser
    t = np.arange(-7, 7.1, 0.5)
    T = np.stack([a.ravel() for a in np.meshgrid(t, t, t)])
    w = np.exp(-0.5 * np.sum(T**2, axis=0))
    for i in range(3):
        f = mean[:, i, None] + np.sqrt(variance[:, i, None]) * T
        p = np.exp(f) / np.exp(f).sum(axis=0)
        average = lambda a: a @ w / w.sum()
        first, outer = average(p), (p * w) @ p.T / w.sum()
        clear = first.max() > 0.5
        np.testing.assert_allclose(ours[:, i], 2 * average(p * (1 - p)) if clear else first, atol=1e-6)
        assert clear == (i > 0)
        assert np.linalg.eigvalsh(np.diag(ours[:, i]) - (np.diag(first) - outer)).min() > -1e-9


def test_robustmax_of_two_has_a_closed_form():
    mean, variance, e = np.stack([MEANS, -F / 10]), np.stack([SMALL, V]), 1e-3
    p = norm.cdf((mean[0] - mean[1]) / np.sqrt(variance.sum(axis=0)))
    rows = say(RobustMax(2), mean, variance, 0.0)
    np.testing.assert_allclose(rows.log_density, np.log((1 - e) * p + e * (1 - p)), rtol=1e-10)
    truth = p * np.log(1 - e) + (1 - p) * np.log(e)
    # Φ((f − μ)/√v) at nodes √v_y/3 apart: a rival of v = 1e-3 beside 0.01 is nearly a step
    np.testing.assert_allclose(rows.expectation, truth, rtol=1e-3)


def test_robustmax_of_three_is_a_bivariate_normal_probability():
    mean, variance = np.array([0.3, -0.8, 1.1]), np.array([0.1, 0.4, 0.2])
    for y in range(3):
        rivals = [c for c in range(3) if c != y]
        covariance = variance[y] + np.diag(variance[rivals])
        p = multivariate_normal(cov=covariance).cdf(mean[y] - mean[rivals])  # f_j − f_y ≤ 0 for both
        ours = say(RobustMax(3), mean[:, None], variance[:, None], float(y)).log_density[0]
        np.testing.assert_allclose(np.exp(ours), 0.999 * p + 0.0005 * (1 - p), rtol=1e-6)


def test_equal_members_are_equally_likely():
    mean, variance = np.full((10, 1), 0.7), np.full((10, 1), 0.4)
    for likelihood in (RobustMax(10), Softmax(10)):
        np.testing.assert_allclose(say(likelihood, mean, variance, 3.0).log_density, np.log(0.1), rtol=1e-9)


def test_fixed_fields_do_not_move():
    edges = [-1.0, 0.2, 1.3]
    for likelihood, fixed in (
        (Ordinal(edges, 0.6), lambda l: (l.first, l.gaps)),
        (Ordinal(edges, 0.6, learn_edges=True, learn_scale=False), lambda l: l.scale),
        (RobustMax(3, 0.01), lambda l: l.epsilon),
    ):
        likelihood = cast(likelihood, float)
        of = trainable(likelihood)
        moved: Any = of.rebuild(of.vector + 1.0)
        for a, b in zip(jax.tree.leaves(fixed(moved)), jax.tree.leaves(fixed(likelihood)), strict=True):
            np.testing.assert_array_equal(a, b)


def test_learned_edges_keep_rising():
    of = trainable(cast(Ordinal([-1.0, 0.2, 1.3], learn_edges=True), float))
    for shift in (-20.0, -3.0, 3.0):
        moved: Any = of.rebuild(of.vector + shift)
        assert (np.diff(moved.edges()) > 0).all()


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Ordinal([0.0, 0.0]), "rising"),
        (lambda: Ordinal([1.0, 0.0]), "rising"),
        (lambda: Ordinal([0.0, np.nan]), "rising"),
        (lambda: Ordinal([]), "rising"),
        (lambda: Ordinal([[0.0, 1.0]]), "rising"),
        (lambda: Ordinal([0.0], scale=-1.0), "must be positive"),
        (lambda: RobustMax(1), "members=1 must be a whole number of at least two"),
        (lambda: RobustMax(3, 0.7), "must be between"),
        (lambda: Softmax(1), "members=1 must be a whole number of at least two"),
        (lambda: StudentT(0.0), "must be positive"),
        (lambda: Beta(-1.0), "must be positive"),
        (lambda: NegativeBinomial(1.0, np.inf), "must be positive"),
    ],
)
def test_bad_arguments_are_one_clear_error(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_an_unknown_link_is_an_error():
    # Past the types, which are checked in tests alone and would speak first.
    with pytest.raises(ValueError, match="link='cauchit' is unknown: use 'logit' or 'probit'"):
        Bernoulli.__check_init__(SimpleNamespace(link="cauchit"))  # pyright: ignore[reportArgumentType]


def test_classes_have_no_cdf():
    with pytest.raises(NotImplementedError, match="Bernoulli has no cdf"):
        Bernoulli().cdf(jnp.zeros(2), jnp.zeros(2))


@pytest.mark.parametrize("level", [-3.0, 0.0])
@pytest.mark.parametrize("at", [(200.0, 0.01, 100.0), (20.0, 0.1, 1000.0), (4.0, 0.25, 1e4), (4.0, 4.0, 10.0)])
def test_the_tails_of_a_student_t_density_of_uncertain_scale_are_followed_up_to_large_scales(at, level):
    """f₂ on a dense grid; its scale explains a row far away, however many standard deviations up."""
    (degrees, variance, far), x = at, np.linspace(-10, 60, 100_001)
    weight: Any = log_softmax(-0.5 * x**2)
    truth: Any = logsumexp(weight + t.logpdf(far, degrees, 0, np.exp(level + np.sqrt(variance) * x)))
    given = np.array([[0.0], [level]]), np.array([[1e-12], [variance]]), np.array([far])
    assert abs(say(HeteroscedasticStudentT(1.0, degrees), *given).log_density[0] - truth) < 1e-5


@pytest.mark.parametrize("likelihood", [HeteroscedasticStudentT(0.4, 4.0), Ordinal([0.0, 1.0], 0.5), Laplace(0.3)])
def test_a_wrapper_has_what_the_likelihood_inside_declares(likelihood):
    declared = set(AbstractLikelihood.__annotations__) - {"has_constant"}
    around = Offset(likelihood, np.zeros(likelihood.latents if likelihood.latents > 1 else ()))
    assert {name: getattr(around, name) for name in declared} == {name: getattr(likelihood, name) for name in declared}
