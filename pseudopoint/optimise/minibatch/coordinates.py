"""Natural gradients in whatever coordinates q has."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...gaussians import AbstractGaussian, MeanCovariance, Natural, step_along, to_expectation_slope
from ...posteriors import Model
from .energy import energy_gradients, gaussian_entropy
from .step import AbstractRule, Context, Proposal

__all__ = ["ForwardNaturalGradient", "ForwardRule", "Moments"]


class Moments(NamedTuple):
    """m, S, θ and ½ log |S| of q: all finite if q is a Gaussian that floating-point numbers can hold."""

    mean: Float[Array, "*C M"]
    cov: Float[Array, "*C M M"]
    theta: Natural
    half_logdet: Float[Array, "*C"]


class ForwardRule(AbstractRule):
    """A natural gradient step of size γ_t in q's own coordinates ξ, any `AbstractGaussian` (Salimbeni et al. 2018, (5),
    (10) and section 5.3).

    With E the energy (the bound without q's entropy), differentiated in m and S as plain arrays, η the expectation
    and θ the natural parameters, where −θ is the entropy's natural gradient:
        ξ ← ξ + γ (∂ξ/∂θ) (∂E/∂η − θ).
    All coordinates follow the same path as γ → 0; finite steps differ. In `Natural` coordinates one step of size 1 on
    all rows solves a Gaussian likelihood. `NaturalGradient` makes the same step there with two factorisations, and has
    rules for likelihoods that are not log-concave.

    Roots and logarithms stay positive definite for every γ; elsewhere a step that leaves the cone is rejected. So is a
    step that overshoots: a root may jump across zero again and again. With P* = −2 ∂E/∂S, the eigenvalues of P*S go to
    1 along the path; a step after which their sum is more than 2 tr(P*S) + 2M has left it.
    """

    name = "ForwardNaturalGradient"
    moves = {"q": AbstractGaussian}

    def init(self, model: Model, num_data: int) -> Moments:
        return _moments(model.posterior.q)

    def update(self, state: Moments, at: Context) -> Proposal:
        """One pass over the batch, and one derivative in forward mode."""

        def stepped(q, state, dm, dS):
            gradient = to_expectation_slope(state.mean, MeanCovariance(dm, dS))
            return step_along(q, jax.tree.map(jnp.subtract, gradient, state.theta), at.gamma)

        value, (gradient, dm, dS), _ = energy_gradients(at, state.mean, state.cov)
        q = _for_each(stepped, dm)(at.model.posterior.q, state, dm, dS)
        new = _moments(q)
        trace = lambda S: -2 * jnp.sum(dS * S, axis=(-2, -1))  # tr(P*S)
        near = (trace(new.cov) <= 2 * jnp.abs(trace(state.cov)) + 2 * dm.shape[-1]).all()
        bound = value + gaussian_entropy(state.half_logdet, state.mean.size)
        return Proposal((q,), new, bound, gradient, jnp.linalg.norm(dm), (q, new), near)


ForwardNaturalGradient = ForwardRule.stepper


def _moments(q) -> Moments:
    one = lambda q: Moments(jnp.asarray(q.mean), q.covariance(), q.to_natural(), q.half_logdet())
    return _for_each(one, min(jax.tree.leaves(q), key=jnp.ndim))(q)


def _for_each(function: Callable[..., Any], vector: Any) -> Callable[..., Any]:
    """The function of one q; or of several, along the leading axis that `vector` then has too."""
    return jax.vmap(function) if jnp.ndim(vector) > 1 else function
