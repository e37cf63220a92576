"""Laplace's approximation: an exact GP under any likelihood of one latent function, by a Gaussian at the mode.

The posterior's mode is f̂ = Kâ with â = ∇ log p(y | f̂) (Izmailov (3), with its erratum). All is computed in a, so that K
is never inverted: Ψ(a) = log p(y | Ka) − ½ aᵀKa, and with W = −∂²log p/∂f² Newton's step is
    (I + WK)⁻¹ (∇ log p(y | Ka) − a).
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.tree_util import Partial
from jaxtyping import Array, Float

from ..data import Dataset
from ..likelihoods import AbstractLikelihood
from ..linalg import Scalar, factorise, solve_square
from ..posteriors import Model, Predictor
from .bound import Solution

__all__ = ["laplace"]

STEPS = 100
# Lengths of a Newton step that are tried: 1 first, which it is in the end; 0 stays.
LENGTHS = np.array([1.0, 0.0, *2.0 ** np.arange(10, -30, -1)])


@jax.jit
def laplace(model: Model, data: Dataset) -> Solution:
    """log q(y) = log p(y | f̂) − ½ f̂ᵀK⁻¹f̂ − ½ log |B|, B = I + W^½ K W^½, and q(f) = N(f̂, (K⁻¹ + W)⁻¹) as it predicts
    (Izmailov 1.3.1, (5); erratum: as printed, |B| lacks the K⁻¹ of |K| |K⁻¹ + W|. Rasmussen and Williams 3.4).

    f̂ maximises log p(y | f) − ½ fᵀK⁻¹f. If log p is not concave, f̂ is the maximum that Newton's method finds from
    f = 0, and negative W count as 0. log p must have two derivatives. Exact for a Gaussian likelihood. N³ operations a
    Newton step. The value is no bound. It has gradients in kernel and likelihood; of the predictor, only `alpha` has.
    """
    rows = Rows(model.likelihood.at(data), data)
    K = model.kernel(data.X, data.X)
    a = _implicit(K, rows, _mode(*lax.stop_gradient((K, rows))))
    f = K @ a
    # ε² is nothing beside I, and the root of W keeps its derivative. Rows of weight zero do not count.
    root = jnp.sqrt(jnp.maximum(rows.curvature(f), jnp.finfo(K.dtype).eps ** 2))
    root = jnp.where(data.weight > 0, root, 0)
    B = factorise(jnp.eye(len(data), dtype=K.dtype) + root[:, None] * K * root)
    value = _psi(K, rows, a) - B.half_logdet()
    return Solution(value, value, Partial(_predictor, model.kernel, data.X, a, root, B))


@jax.jit
def _predictor(kernel, X, a, root, B) -> Predictor:
    """E f* = k*ᵀâ and V f* = k** − ‖L⁻¹W^½k*‖² with B = LLᵀ."""
    return Predictor(kernel, X, a, X, B.inverse * root, jnp.zeros_like(a), B.jitter, True)


class Rows(eqx.Module):
    """log p(y | f) = Σ wᵢ log p(yᵢ | fᵢ), its gradient, and W, the diagonal of minus its Hessian."""

    likelihood: AbstractLikelihood
    data: Dataset

    def log_prob(self, f: Float[Array, " N"]) -> Scalar:
        return jnp.sum(self.data.weight * self.likelihood.log_prob(f, self.data.y))

    def slope(self, f: Float[Array, " N"]) -> Float[Array, " N"]:
        return jax.grad(self.log_prob)(f)

    def curvature(self, f: Float[Array, " N"]) -> Float[Array, " N"]:
        return -jax.grad(lambda f: jnp.sum(self.slope(f)))(f)


def _psi(K, rows, a):
    """Ψ(a) = log p(y | Ka) − ½ aᵀKa."""
    f = K @ a
    return rows.log_prob(f) - 0.5 * (a @ f)


def _newton(K, W, r):
    """(I + WK)⁻¹ r.

    Not as r − W^½B⁻¹W^½Kr (Rasmussen and Williams, algorithm 3.1), whose terms cancel: if WK is of the size 1/ε, the
    difference is rounding error. LU also takes half the time of B's factor with its inverse.
    """
    return solve_square(lax.stop_gradient(jnp.eye(len(r), dtype=r.dtype) + W[:, None] * K), r)


class _Iterate(NamedTuple):
    """The iterate of Newton's method, Ψ there, and whether the last step gained enough for another."""

    steps: Array
    a: Float[Array, " N"]
    psi: Scalar
    rising: Array


def _mode(K: Float[Array, "N N"], rows: Rows) -> Float[Array, " N"]:
    """â by Newton's method from 0, with W ≥ 0, so that Ψ rises along a step, and with a search for its length.

    The length is 1 if that is as good as the best of `LENGTHS`, to 2⁹ε of Ψ (1e-13 in float64). Newton's method ends
    when a step gains no more than this: its convergence is quadratic, so that the error left is much smaller.
    """
    lengths = jnp.asarray(LENGTHS, K.dtype)[:, None]

    def step(here: _Iterate) -> _Iterate:
        f = K @ here.a
        tried = here.a + lengths * _newton(K, jnp.maximum(rows.curvature(f), 0), rows.slope(f) - here.a)
        psi = jax.vmap(lambda a: _psi(K, rows, a))(tried)
        best = jnp.nanmax(psi)
        slack = 2**9 * jnp.finfo(K.dtype).eps * (1 + jnp.abs(best))
        good = psi >= best - slack
        first = jnp.argmax(good)
        # If the step is not finite, no length is good.
        a, psi = (jnp.where(good[first], new[first], old) for new, old in ((tried, here.a), (psi, here.psi)))
        return _Iterate(here.steps + 1, a, psi, psi > here.psi + slack)

    zero = jnp.zeros_like(rows.data.y)
    start = _Iterate(jnp.array(0), zero, _psi(K, rows, zero), jnp.array(True))
    return lax.while_loop(lambda here: here.rising & (here.steps < STEPS), step, start).a


def _implicit(K: Float[Array, "N N"], rows: Rows, a: Float[Array, " N"]) -> Float[Array, " N"]:
    """â with its derivative: one more Newton step, whose matrix is a constant.

    From r(a, θ) = ∇log p(y | Ka) − a = 0 follows ∂â/∂θ = (I + WK)⁻¹ ∂r/∂θ (implicit function theorem). Negative W stay
    negative here: with 0 in their place, this would be the derivative of another equation.
    """
    f = K @ a
    step = _newton(K, rows.curvature(f), rows.slope(f) - a)
    before, after = lax.stop_gradient((_psi(K, rows, a), _psi(K, rows, a + step)))
    # Far from a maximum the step may lead anywhere. Then only its derivative is used. A fall of √ε of Ψ is rounding.
    climbs = after >= before - jnp.sqrt(jnp.finfo(K.dtype).eps) * (1 + jnp.abs(before))
    return a + step - lax.stop_gradient(jnp.where(climbs, 0, step))
