"""Posterior families by name: the start of each, and its steps on minibatches."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..gaussians import MeanPrecision
from ..kernels import AbstractKernel
from ..linalg import invert
from ..optimise.minibatch import (
    AbstractStepper,
    DiagonalPrecisionNaturalGradient,
    NaturalGradient,
    Optax,
    OrthogonalNaturalGradient,
    SolveNaturalGradient,
    averaging,
)
from ..optimise.transformation import GradientTransformation
from ..posteriors import (
    AbstractPosterior,
    Decoupled,
    DiagonalPrecision,
    Hybrid,
    IndependentLatents,
    Orthogonal,
    PseudoObservations,
    SolveGP,
    Unwhitened,
    Whitened,
    prior_factor,
)

__all__ = ["FAMILIES", "Family", "prior_q", "family_steppers", "several"]


class Family(NamedTuple):
    """What a fit needs of a posterior family.

    `more_points` says whether it has points O. `start(Z, O, kernel)` is the posterior whose q is the prior. `stepper(γ,
    hyper_optimiser, frozen, tight)` moves it on minibatches; without a hyper_optimiser (None) it moves q alone, or is
    None if the family has no natural gradient.
    """

    more_points: bool
    start: Callable[[Any, Any, AbstractKernel], AbstractPosterior]
    stepper: Callable[..., AbstractStepper | None]


def prior_q(Z) -> MeanPrecision:
    """N(0, I) in as many dimensions as there are points."""
    return MeanPrecision(*(jnp.asarray(x, Z.dtype) for x in (np.zeros(len(Z)), np.eye(len(Z)))))


def several(posterior: AbstractPosterior, C: int) -> AbstractPosterior:
    """C latent functions that start alike; the posterior itself for C = 1."""
    if C == 1:
        return posterior
    select = lambda p: [getattr(p, name) for name in p.own]
    stack = jax.tree.map(lambda x: jnp.broadcast_to(x, (C, *jnp.shape(x))), select(posterior))
    return IndependentLatents(eqx.tree_at(select, posterior, stack))


def _unwhitened(Z, O, kernel):
    return Unwhitened(Z, MeanPrecision(_zeros(Z), _prior_precision(kernel, Z)))


@jax.jit
def _prior_precision(kernel, Z):
    return invert(prior_factor(kernel, Z, None).K)[0]


def _zeros(points):
    return jnp.zeros(len(points), points.dtype)


def _ordinary(gamma, hyper_optimiser, frozen, tight):
    return None if hyper_optimiser is None else Optax(hyper_optimiser, frozen, tight)


# By the names of `names.POSTERIORS`.
FAMILIES: dict[str, Family] = {
    "whitened": Family(False, lambda Z, O, kernel: Whitened(Z, prior_q(Z)), NaturalGradient),
    "unwhitened": Family(False, _unwhitened, NaturalGradient),
    "diagonal": Family(
        False,
        lambda Z, O, kernel: DiagonalPrecision(Z, PseudoObservations(_zeros(Z), jnp.ones(len(Z), Z.dtype))),
        DiagonalPrecisionNaturalGradient,
    ),
    "decoupled": Family(
        True, lambda Z, O, kernel: Decoupled(Z, O, _zeros(O), jnp.eye(len(Z), dtype=Z.dtype)), _ordinary
    ),
    "hybrid": Family(True, lambda Z, O, kernel: Hybrid(Z, O, prior_q(Z), _zeros(O)), NaturalGradient),
    "orthogonal": Family(True, lambda Z, O, kernel: Orthogonal(Z, O, prior_q(Z), _zeros(O)), OrthogonalNaturalGradient),
    "solve": Family(True, lambda Z, O, kernel: SolveGP(Z, O, prior_q(Z), prior_q(O)), SolveNaturalGradient),
}


def family_steppers(
    name: str, N: int, B: int, optimiser: GradientTransformation, held: tuple, tight: bool, prior: Any = None
) -> tuple[Any, AbstractStepper | None]:
    """The stepper that learns everything, under a `prior`, and the one that settles q alone (None if there is none)."""
    make = FAMILIES[name].stepper
    learning: Any = make(averaging(N, B, 5.0, 0.1), optimiser, held, tight)
    return replace(learning, prior=prior), make(averaging(N, B), None, held, tight)
