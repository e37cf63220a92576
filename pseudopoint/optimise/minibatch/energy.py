"""What the natural gradient rules share: the energy with its gradients, and the update of a precision.

The energy E is the bound without the entropy of q. The entropy's natural gradient is known in closed form, so a natural
step differentiates E alone, in m and S as plain arrays.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...bounds import AtRows, energies, row_energies
from ...data import Dataset
from ...gaussians import MeanCovariance
from ...likelihoods import AbstractLikelihood
from ...linalg import Scalar, symmetric_product
from ...posteriors import Model
from .step import BatchEnergy, Context

__all__ = [
    "RowSlopes",
    "energy_gradients",
    "gaussian_entropy",
    "next_precision",
    "row_curvatures",
    "two_gradients",
    "with_q",
]


@dataclass(frozen=True)
class RowSlopes:
    """A `Part`: the first three fields of `BatchEnergy`, of a model whose q is in mean and covariance."""

    tight: bool

    def __call__(self, model: Model, chunk: Dataset) -> tuple[Scalar, Any, Any]:
        """Of the rows of one chunk."""
        numbers, rest = eqx.partition(model, eqx.is_inexact_array)
        at = lambda numbers: AtRows.of(eqx.combine(numbers, rest), chunk)
        value, (slopes,), (below,) = two_gradients(lambda n: row_energies(at(n), len(chunk), self.tight), numbers)
        return value, slopes, below.posterior.q.cov


def with_q(model: Model, q: Any) -> Model:
    """The model with another q."""
    return eqx.tree_at(lambda m: m.posterior.q, model, q)


def energy_gradients(at: Context, mean: Any, cov: Any):
    """E, its gradients in (θ, m, S), and P_ω, −2 times the gradient in S of E's minorant (`bounds.energies`).

    One forward pass serves all of them, and a compiled step drops those that are not used. S and its gradient are
    symmetric.
    """
    model = lambda parts, mean, cov: with_q(at.hyper.rebuild(parts), MeanCovariance(mean, cov, known=True))
    here = at.hyper.parts, mean, cov
    # Whether a batch is rows, or what rows elsewhere add up to, is asked here alone.
    if isinstance(at.batch, BatchEnergy):
        return _of_sums(at.batch, model, here)
    objective = lambda *numbers: energies(model(*numbers), at.batch, at.num_data, at.tight)
    value, gradients, (_, _, minorant) = two_gradients(objective, *here)
    return value, gradients, -2 * minorant


def _of_sums(batch: BatchEnergy, model: Callable, here: tuple):
    """`energy_gradients` from sums over the rows, to which E_q[log p(u)] is added."""
    log_prior = lambda *numbers: _log_prior(model(*numbers))
    prior, of_prior = jax.value_and_grad(log_prior, argnums=(0, 1, 2))(*here)
    _, pull = jax.vjp(lambda *numbers: eqx.filter(model(*numbers), eqx.is_inexact_array), *here)
    scaled = lambda rows, of_prior: batch.scale * rows + of_prior
    gradients = jax.tree.map(scaled, pull(batch.slopes), of_prior)
    return scaled(batch.value, prior), gradients, -2 * scaled(batch.minorant, of_prior[2])


def _log_prior(model: Model) -> Scalar:
    return model.posterior.project(model.kernel).log_prior


def two_gradients(objective: Callable[..., tuple[Scalar, Scalar]], *at: Any) -> tuple[Scalar, Any, Any]:
    """The first value of an objective, its gradients, and those of the second value, from one forward pass: K_uu is
    factorised once."""
    (value, _), pull = jax.vjp(objective, *at)
    one, zero = jnp.ones_like(value), jnp.zeros_like(value)
    return value, pull((one, zero)), pull((zero, one))


def next_precision(likelihood: AbstractLikelihood, P: Any, S: Any, target: Any, gamma: Any) -> Any:
    """P after a natural step towards P* = −2 ∂E/∂S, the `target`.

    For a log-concave likelihood it is the average (1 − γ)P + γP*. For others P* may be indefinite, and the improved
    Bayesian learning rule keeps P positive definite: P + γG + ½γ² GSG, G = P* − P (Lin, Schmidt and Khan 2020; methods
    d.2).
    """
    if likelihood.concave:
        return (1 - gamma) * P + gamma * target
    G = target - P
    return P + gamma * G + 0.5 * gamma**2 * symmetric_product(G @ S, G)


def row_curvatures(at: Context, projection: Any, tight: bool):
    """βᵢ = −2 ∂/∂V fᵢ E log p(yᵢ | fᵢ) and the majoriser's ωᵢ, each [*C, B], times wᵢN/B."""
    batch, likelihood = at.batch, at.model.likelihood.at(at.batch)
    mean, explained, d = projection.marginals(batch.X)
    v = likelihood.shrinkage(d, batch.weight) if tight else 1.0
    moments = mean, explained + v * d, batch.y
    gradients = likelihood.expectation_gradients(*moments)
    weight = (at.num_data / len(batch)) * batch.weight
    return -2 * weight * gradients[1], weight * likelihood.majoriser(*moments, gradients)


def gaussian_entropy(half_logdet: Float[Array, "*C"], size: int) -> Scalar:
    """½ log |2πe S|, summed over all latent functions; `size` is CM."""
    return 0.5 * size * (1 + jnp.log(2 * jnp.pi)) + jnp.sum(half_logdet)
