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

    f̂ maximises log p(y | f) − ½ fᵀK⁻¹f. Where log p is not concave, it is the maximum that Newton's method finds from
    f = 0, and W < 0 counts as 0. log p must have two derivatives. Exact for a Gaussian likelihood; N³ a Newton step.
    The value, which is no bound, has its gradient in kernel and likelihood; of the predictor, `alpha` alone.
    """
    rows = _Rows(model.likelihood.at(data.noise), data)
    K = model.kernel(data.X, data.X)
    a = _implicit(K, rows, _mode(*lax.stop_gradient((K, rows))))
    f = K @ a
    # ε² is nothing beside I, and the root of W keeps its derivative.
    root = jnp.sqrt(jnp.maximum(rows.curvature(f), jnp.finfo(K.dtype).eps ** 2))
    B = factorise(jnp.eye(len(data), dtype=K.dtype) + root[:, None] * K * root)
    value = _psi(K, rows, a) - B.half_logdet()
    return Solution(value, value, Partial(_predictor, model.kernel, data.X, a, root, B))


@jax.jit
def _predictor(kernel, X, a, root, B) -> Predictor:
    """E f* = k*ᵀâ and V f* = k** − ‖L⁻¹W^½k*‖² with B = LLᵀ."""
    return Predictor(kernel, X, a, X, B.inverse * root, jnp.zeros_like(a), B.jitter, True)


class _Rows(eqx.Module):
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

    Not as r − W^½B⁻¹W^½Kr (Rasmussen and Williams, algorithm 3.1): these terms cancel, and where WK is of the size 1/ε
    the difference is rounding error. LU also takes half the time of B's factor with its inverse.
    """
    return solve_square(lax.stop_gradient(jnp.eye(len(r), dtype=r.dtype) + W[:, None] * K), r)


class _Climb(NamedTuple):
    """Where Newton's method is, Ψ there, and whether the last step was worth another."""

    steps: Array
    a: Float[Array, " N"]
    psi: Scalar
    rising: Array


def _mode(K: Float[Array, "N N"], rows: _Rows) -> Float[Array, " N"]:
    """â by Newton's method from 0, with W ≥ 0, along which Ψ rises, and with a search for the length of each step.

    The length is 1 where that is as good as the best of `LENGTHS`, to 2⁹ε of Ψ (1e-13 in float64). The end is where no
    more than this is gained: a Newton step that gained so little has squared the error that was left.
    """
    lengths = jnp.asarray(LENGTHS, K.dtype)[:, None]

    def step(here: _Climb) -> _Climb:
        f = K @ here.a
        tried = here.a + lengths * _newton(K, jnp.maximum(rows.curvature(f), 0), rows.slope(f) - here.a)
        psi = jax.vmap(lambda a: _psi(K, rows, a))(tried)
        best = jnp.nanmax(psi)
        slack = 2**9 * jnp.finfo(K.dtype).eps * (1 + jnp.abs(best))
        good = psi >= best - slack
        first = jnp.argmax(good)
        # None is good where the step itself is not finite.
        a, psi = (jnp.where(good[first], new[first], old) for new, old in ((tried, here.a), (psi, here.psi)))
        return _Climb(here.steps + 1, a, psi, psi > here.psi + slack)

    zero = jnp.zeros_like(rows.data.y)
    start = _Climb(jnp.array(0), zero, _psi(K, rows, zero), jnp.array(True))
    return lax.while_loop(lambda here: here.rising & (here.steps < STEPS), step, start).a


def _implicit(K: Float[Array, "N N"], rows: _Rows, a: Float[Array, " N"]) -> Float[Array, " N"]:
    """â with its derivative: one more Newton step, whose matrix is a constant.

    r(a, θ) = ∇log p(y | Ka) − a = 0 moves a with θ as ∂â/∂θ = (I + WK)⁻¹ ∂r/∂θ (implicit function theorem), W as it is:
    with negative ones raised to 0, this would be the derivative of another equation.
    """
    f = K @ a
    step = _newton(K, rows.curvature(f), rows.slope(f) - a)
    before, after = lax.stop_gradient((_psi(K, rows, a), _psi(K, rows, a + step)))
    # Far from a maximum the step may lead anywhere, and then it gives its derivative alone. √ε of Ψ is no fall.
    climbs = after >= before - jnp.sqrt(jnp.finfo(K.dtype).eps) * (1 + jnp.abs(before))
    return a + step - lax.stop_gradient(jnp.where(climbs, 0, step))
