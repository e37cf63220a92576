"""What a user may add from outside the package, by its contracts alone: a posterior family, a conjugate likelihood."""

# Fields take floats and NumPy arrays and become JAX arrays in `cast` or under jit; a type checker knows the last alone.
# pyright: reportArgumentType=false, reportCallIssue=false, reportIncompatibleVariableOverride=false

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float
from lattice import close, problem

from pseudopoint import GPRegressor, bounds
from pseudopoint.gaussians import MeanCovariance
from pseudopoint.kernels import AbstractKernel, Matern52
from pseudopoint.likelihoods import AbstractLikelihood, Gaussian, Softmax
from pseudopoint.likelihoods.base import Moments
from pseudopoint.optimise.minibatch import Optax
from pseudopoint.params import Number, cast, positive, real
from pseudopoint.posteriors import (
    AbstractPosterior,
    AbstractProjection,
    Collapsed,
    IndependentLatents,
    Marginals,
    PointsBasis,
    Predictor,
    Whitened,
    prior_factor,
)
from pseudopoint.recipes import FAMILIES, Settings, fit_model
from pseudopoint.recipes.families import Family

# --- A posterior family: q(v) = N(m, s I), v = L⁻¹u ---


class IsotropicProjection(AbstractProjection):
    """q(f) of q(v) = N(m, s I)."""

    basis: PointsBasis
    mean: Float[Array, " M"]
    scale: Float[Array, ""]

    @property
    def divergence(self):
        """½ (M s + ‖m‖² − M − M log s)."""
        M = len(self.mean)
        return 0.5 * (M * self.scale + self.mean @ self.mean - M - M * jnp.log(self.scale))

    def marginals_at(self, rows: Any) -> Marginals:
        """aᵀm, s ‖a‖² and k(x, x) − ‖a‖²."""
        Kux, prior = rows
        A = self.basis.Kuu.whiten(Kux)
        squares = jnp.sum(A**2, axis=0)
        return Marginals(self.mean @ A, self.scale * squares, prior - squares)

    def predictor(self) -> Predictor:
        """α = L⁻ᵀm, W = L⁻¹."""
        at, s = self.basis, self.scale * jnp.ones_like(self.mean)
        return Predictor(at.kernel, at.Z, at.Kuu.inverse.T @ self.mean, at.Z, at.Kuu.inverse, s, at.Kuu.jitter, True)


class Isotropic(AbstractPosterior):
    """q(v) = N(m, s I): M + 1 numbers."""

    own: ClassVar[tuple[str, ...]] = ("mean", "scale")
    Z: Float[Number, "M D"]
    mean: Float[Number, "*C M"] = real()
    scale: Float[Number, "*C"] = positive()
    jitter: float | None = eqx.field(static=True, default=None)

    @property
    def q(self) -> Any:
        """(m, s)."""
        return self.mean, self.scale

    def basis(self, kernel: AbstractKernel) -> PointsBasis:
        """One factorisation."""
        Z = jnp.asarray(self.Z)
        return PointsBasis(kernel, Z, prior_factor(kernel, Z, self.jitter))

    def on(self, basis: PointsBasis) -> IsotropicProjection:
        """Nothing but q is left to add."""
        return IsotropicProjection(basis, jnp.asarray(self.mean), jnp.asarray(self.scale))


P = problem(3, 30, 5)
M = len(P.Z)
MEAN = np.linspace(-1, 1, M)


def whitened(mean, scale):
    return Whitened(P.Z, MeanCovariance(mean, scale * np.eye(M)), jitter=0.0)


@jax.jit
def look(model, data):
    """The bound, and predictions."""
    return bounds.elbo(model, data, len(data)), model.predictor()(P.Xs)


def same(ours, theirs):
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        close(a, b, 1e-10)


def test_a_family_of_ones_own_has_bounds_and_predictions():
    isotropic = P.model(Isotropic(P.Z, MEAN, 0.3, jitter=0.0))
    same(look(isotropic, P.data()), look(P.model(whitened(MEAN, 0.3)), P.data()))


def test_several_latent_functions_may_have_it():
    both = Isotropic(P.Z, np.stack([MEAN, -MEAN, 0 * MEAN]), np.array([0.3, 0.1, 2.0]), jitter=0.0)
    dense = whitened(np.stack([MEAN, -MEAN, 0 * MEAN]), np.array([0.3, 0.1, 2.0])[:, None, None])
    data = eqx.tree_at(lambda data: data.y, P.data(), jnp.arange(len(P.y)) % 3.0)
    of = lambda posterior: eqx.tree_at(lambda m: m.likelihood, P.model(IndependentLatents(posterior)), Softmax(3))
    same(look(of(both), data), look(of(dense), data))


def test_a_fit_takes_it_by_name(monkeypatch):
    start = lambda Z, O, kernel: Isotropic(Z, jnp.zeros(len(Z), Z.dtype), jnp.ones((), Z.dtype))
    stepper = lambda gamma, rest, frozen, tight: None if rest is None else Optax(rest, frozen, tight)
    monkeypatch.setitem(FAMILIES, "isotropic", Family(False, start, stepper))
    settings = Settings(posterior="isotropic", num_inducing=8, max_iter=300, batch_size=30, effort="fast")
    fitted = fit_model(Matern52(np.ones(2), 1.0), Gaussian(0.1), P.data(), settings)
    assert fitted.method == "svgp" and fitted.model.posterior.scale < 0.9
    assert fitted.bound > look(P.model(Isotropic(P.Z, 0 * MEAN, 1.0)), P.data())[0].value + 5


# --- A conjugate likelihood: noise by the logarithm of its standard deviation ---


class LogNoise(AbstractLikelihood):
    """y = f + N(0, e^{2t})."""

    concave: ClassVar[bool] = True
    t: Float[Number, ""] = real(default=-1.0)

    @property
    def gaussian_noise(self):
        """e^{2t}: with this alone all closed forms apply."""
        return jnp.exp(2 * self.t)

    def log_prob(self, f, y):
        """log N(y; f, e^{2t})."""
        return -0.5 * (jnp.log(2 * jnp.pi) + 2 * self.t + (y - f) ** 2 * jnp.exp(-2 * self.t))

    def moments(self, f):
        """f, e^{2t}."""
        return Moments(f, self.gaussian_noise + jnp.zeros_like(f))


@pytest.mark.parametrize("bound", [bounds.marginal, bounds.collapsed])
def test_a_conjugate_likelihood_of_ones_own_has_closed_forms(bound):
    model = P.model(Collapsed(P.Z)) if bound is bounds.collapsed else P.model()
    data = eqx.tree_at(lambda data: data.noise, P.data(), jnp.zeros(len(P.y)))
    values = lambda likelihood: bound(eqx.tree_at(lambda m: m.likelihood, model, cast(likelihood, "float64")), data)
    ours, truth = values(LogNoise(-1.2)), values(Gaussian(np.exp(-2.4)))
    close(ours.choose(True), truth.value, 1e-10)
    close(ours.choose(False), truth.standard, 1e-10)
    close(ours.upper(), truth.upper(), 1e-10)


def test_a_likelihood_without_gaussian_noise_is_refused_in_one_sentence():
    model = eqx.tree_at(lambda m: m.likelihood, P.model(), Softmax(3))
    with pytest.raises(TypeError, match="^Softmax has no bound in closed form: use elbo"):
        bounds.marginal(model, P.data())


def test_a_posterior_in_closed_form_names_its_bound():
    with pytest.raises(TypeError, match="use bounds.collapsed$"):
        P.sparse().predictor()


@pytest.mark.parametrize("method", ["exact", "collapsed", "svgp"])
def test_an_estimator_fits_it_exactly(method):
    settings = dict(method=method, num_inducing=30, max_iter=60 if method == "exact" else 20)
    ours = GPRegressor(likelihood=LogNoise(0.5 * np.log(0.1)), **settings, effort="fast").fit(P.X, P.y)
    truth = GPRegressor(likelihood=Gaussian(0.1), **settings, effort="fast").fit(P.X, P.y)
    assert ours.mean_ is None and ours.upper_bound_ < np.inf
    if method == "exact":
        assert ours.reason_ == truth.reason_ and abs(ours.bound_ - truth.bound_) < 1e-3
        np.testing.assert_allclose(ours.predict(P.Xs), truth.predict(P.Xs), rtol=0, atol=0.02)
