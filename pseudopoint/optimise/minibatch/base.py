"""What a stepper for minibatches is: (model, state, batch) ↦ (model, state, info), and how its steps are kept safe.

A step that would leave the positive definite cone, or the finite numbers, is rejected; the next ones are half as long
and grow back. So no fit ends in NaN. So is one whose gradient is out of all proportion, for an optimiser would remember
it.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from ...bounds import energies, majorises
from ...data import Dataset
from ...gaussians import MeanCovariance
from ...likelihoods import AbstractLikelihood
from ...linalg import Scalar, symmetric_product
from ...params import Parts, Trainable
from ...posteriors import IndependentLatents, Model

__all__ = [
    "AbstractStepper",
    "Guard",
    "Info",
    "all_finite",
    "both_slopes",
    "climbed",
    "each",
    "energy_slopes",
    "gaussian_entropy",
    "majorises",
    "next_precision",
    "with_q",
]

Rows = Int[Array, " B"]

# After a gradient R times as long as others Adam, whose mean of squares has a memory of 1,000 steps, stands still for
# 2000 log(√0.001 R) of them: 20,000, more than most fits have. From step to step of a fit R was seen up to 60.
JUMP = 1e6


class Info(NamedTuple):
    """What a person wants to know of a step. `bound` is the batch's estimate before the step."""

    bound: Scalar
    gradient_norm: Scalar
    step_size: Scalar
    rejected: Bool[Array, ""]


class Guard(NamedTuple):
    """The step counter and the safety: all steps are multiplied by `scale` ≤ 1. `norm` is that of the gradient that an
    optimiser was given last; 0 if there was none."""

    steps: Int[Array, ""]
    scale: Scalar
    norm: Scalar

    @staticmethod
    def start(dtype: Any) -> "Guard":
        """No step yet, and full ones to come."""
        return Guard(jnp.zeros((), int), jnp.ones((), dtype), jnp.zeros((), dtype))

    def is_plausible(self, norm: Any) -> Bool[Array, ""]:
        """Whether a gradient is at most `JUMP` times as long as the last one, rejected or not: where the next batch
        says the same it is the model's gradient, and has to be followed."""
        return (self.norm == 0) | (norm <= JUMP * self.norm)

    def accept_or_revert(self, good: Bool[Array, ""], new: Any, old: Any, norm: Any = 0.0) -> tuple[Any, "Guard"]:
        """`new` if it is good, growing back to full steps; else `old`, and half the step from now on. `norm` is that of
        the gradient that an optimiser was given in the step."""
        scale = jnp.where(good, jnp.minimum(1.0, 1.1 * self.scale), 0.5 * self.scale).astype(self.scale.dtype)
        norm = jnp.where(jnp.isfinite(norm), norm, self.norm).astype(self.norm.dtype)
        return jax.tree.map(lambda a, b: jnp.where(good, a, b), new, old), Guard(self.steps + 1, scale, norm)


class AbstractStepper(eqx.Module):
    """One way to improve a model from one batch."""

    @abstractmethod
    def init(self, model: Model, num_data: int) -> Any:
        """The state before the first step, for a table of `num_data` rows."""

    @abstractmethod
    def step(
        self, model: Model, state: Any, batch: Dataset, num_data: int, rows: Rows | None = None
    ) -> tuple[Model, Any, Info]:
        """One step on one batch out of `num_data` rows. `rows` are their numbers, for what remembers rows; None means
        the batch is the whole table, in order.
        """


def climbed(
    optimiser: optax.GradientTransformation | None, every: Trainable, slope: Parts, state: Any, guard: Guard
) -> tuple[Model, Parts, Any, Scalar]:
    """The model after the optimiser's step along the slope in its free numbers, `guard.scale` times as long; these
    numbers, the optimiser's state, and the norm of the slope that it was given: 0 where there is no optimiser (None).
    """
    if optimiser is None:
        return every.model, every.parts, state, jnp.zeros_like(guard.norm)
    updates, state = optimiser.update(jax.tree.map(jnp.negative, slope), state, every.parts)
    parts = jax.tree.map(lambda x, update: x + guard.scale * update, every.parts, updates)
    norm = jnp.sqrt(sum((jnp.sum(part**2) for part in slope), jnp.zeros_like(guard.norm)))
    return every.rebuild(parts), parts, state, norm


def energy_slopes(hyper: Trainable, mean: Any, cov: Any, batch: Dataset, num_data: int, tight: bool):
    """The energy, the bound without q's entropy; its slopes in θ, m and S as plain arrays; and P_ω, −2 times the slope
    in S of its minorant (`bounds.energies`). One pass, from which each is pulled back. S and its slopes are symmetric.

    What nobody reads a compiled step does not compute.
    """

    def objective(parts, mean, cov):
        return energies(with_q(hyper.rebuild(parts), MeanCovariance(mean, cov, known=True)), batch, num_data, tight)

    value, slopes, (_, _, dS) = both_slopes(objective, hyper.parts, mean, cov)
    return value, slopes, -2 * dS


def both_slopes(objective: Callable[..., tuple[Scalar, Scalar]], *at: Any) -> tuple[Scalar, Any, Any]:
    """The first value of an objective, its slopes, and those of the second, where K_uu is factorised once for all."""
    (value, _), pull = jax.vjp(objective, *at)
    one, none = jnp.ones_like(value), jnp.zeros_like(value)
    return value, pull((one, none)), pull((none, one))


def next_precision(likelihood: AbstractLikelihood, P: Any, S: Any, target: Any, gamma: Any) -> Any:
    """(1 − γ)P + γP*, P* = −2 ∂E/∂S, for a log-concave likelihood; else, where P* may be indefinite, the improved
    Bayesian learning rule P + γG + ½γ² GSG, G = P* − P (Lin, Schmidt and Khan 2020; methods d.2)."""
    if likelihood.concave:
        return (1 - gamma) * P + gamma * target
    G = target - P
    return P + gamma * G + 0.5 * gamma**2 * symmetric_product(G @ S, G)


def gaussian_entropy(half_logdet: Float[Array, "*C"], size: int) -> Scalar:
    """½ log |2πe S|, of all latent functions."""
    return 0.5 * size * (1 + jnp.log(2 * jnp.pi)) + jnp.sum(half_logdet)


# Any: a type checker sees two families where there is one.
def each(posterior: Any) -> Any:
    """The posterior itself, or that of which several latent functions have one each, with a leading axis C."""
    return posterior.base if isinstance(posterior, IndependentLatents) else posterior


def with_q(model: Model, q: Any) -> Model:
    """The model with another q."""
    return eqx.tree_at(lambda m: m.posterior.q, model, q)


def all_finite(tree: Any) -> Bool[Array, ""]:
    """Whether every number of a tree is finite, by their sum: one pass a leaf. A sum that overflows is taken for no."""
    return jnp.isfinite(sum((jnp.sum(leaf) for leaf in jax.tree.leaves(tree)), jnp.zeros(())))
