"""Posterior families by name: how each starts, and the natural gradient that moves it."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

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
    """Whether a family has more points O; how it starts from points and a kernel; and its stepper for (γ,
    hyper_optimiser or None, frozen, tight)."""

    more_points: bool
    start: Callable[[Any, Any, AbstractKernel], AbstractPosterior]
    stepper: Callable[..., AbstractStepper | None]


def prior_q(Z) -> MeanPrecision:
    """N(0, I), one number a point."""
    return MeanPrecision(*(jnp.asarray(x, Z.dtype) for x in (np.zeros(len(Z)), np.eye(len(Z)))))


def several(posterior: AbstractPosterior, C: int) -> AbstractPosterior:
    """The same start for C latent functions."""
    if C == 1:
        return posterior
    select = lambda p: [getattr(p, name) for name in p.own]
    stack = jax.tree.map(lambda x: jnp.broadcast_to(x, (C, *jnp.shape(x))), select(posterior))
    return IndependentLatents(base=eqx.tree_at(select, posterior, stack))  # pyright: ignore[reportCallIssue]


def _unwhitened(Z, O, kernel):
    precision, _ = invert(prior_factor(kernel, Z, None).K)
    return Unwhitened(Z, MeanPrecision(jnp.zeros(len(Z), Z.dtype), precision))


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
        True,
        lambda Z, O, kernel: Decoupled(  # pyright: ignore[reportCallIssue]
            Z=Z, O=O, a=_zeros(O), B=jnp.eye(len(Z), dtype=Z.dtype), jitter=None
        ),
        _ordinary,
    ),
    "hybrid": Family(
        True,
        lambda Z, O, kernel: Hybrid(Z=Z, O=O, q=prior_q(Z), a=_zeros(O), jitter=None),
        NaturalGradient,
    ),
    "orthogonal": Family(
        True,
        lambda Z, O, kernel: Orthogonal(Z=Z, O=O, q=prior_q(Z), a=_zeros(O), jitter=None),
        OrthogonalNaturalGradient,
    ),
    "solve": Family(
        True,
        lambda Z, O, kernel: SolveGP(Z=Z, O=O, q=prior_q(Z), r=prior_q(O), jitter=None),
        SolveNaturalGradient,
    ),
}


@lru_cache(maxsize=32)
def family_steppers(
    name: str, N: int, B: int, steps: int, rate: float, held: tuple, tight: bool
) -> tuple[Any, AbstractStepper | None]:
    """What learns everything, and what settles q alone (None where a family has no natural gradient). Made once for the
    same arguments, for JAX compiles a stepper's functions anew when they are others."""
    make = FAMILIES[name].stepper
    adam = optax.adam(optax.cosine_decay_schedule(rate, steps))
    return make(averaging(N, B, 5.0, 0.1), adam, held, tight), make(averaging(N, B), None, held, tight)
