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
from ..likelihoods import AbstractLikelihood
from ..linalg import invert
from ..optimise.minibatch import (
    AbstractStepper,
    DiagonalPrecisionNaturalGradient,
    NaturalGradient,
    Optax,
    OrthogonalNaturalGradient,
    SolveNaturalGradient,
    adam_until_flat,
    averaging,
)
from ..optimise.minibatch.loop import TrainState
from ..optimise.named import RATE, STEPS, adam, held_points
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
from .settings import Settings

# Steps and rate of Adam for likelihoods whose rows tell less of the latent function than those of a Gaussian do.
MORE_STEPS, HIGHER_RATE = 3000, 0.05
SEEN = 10.0  # batches that a q counts for, after steps of a tenth, where it settles


class Family(NamedTuple):
    """What a fit needs of a posterior family.

    `more_points` says whether it has points O. `start(Z, O, kernel)` is the posterior whose q is the prior. `stepper(γ,
    hyper_optimiser, frozen, tight)` moves it on minibatches; without a hyper_optimiser (None) it moves q alone, or is
    None if the family has no natural gradient. `averages` says whether steps 1/(t + 1) of one epoch end at the best q
    under Gaussian noise.
    """

    more_points: bool
    start: Callable[[Any, Any, AbstractKernel], AbstractPosterior]
    stepper: Callable[..., AbstractStepper | None]
    averages: bool = True


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
        averages=False,
    ),
    "decoupled": Family(
        True, lambda Z, O, kernel: Decoupled(Z, O, _zeros(O), jnp.eye(len(Z), dtype=Z.dtype)), _ordinary
    ),
    "hybrid": Family(True, lambda Z, O, kernel: Hybrid(Z, O, prior_q(Z), _zeros(O)), NaturalGradient),
    "orthogonal": Family(True, lambda Z, O, kernel: Orthogonal(Z, O, prior_q(Z), _zeros(O)), OrthogonalNaturalGradient),
    "solve": Family(True, lambda Z, O, kernel: SolveGP(Z, O, prior_q(Z), prior_q(O)), SolveNaturalGradient),
}


def steps_and_rate(settings: Settings, likelihood: AbstractLikelihood) -> tuple[int, float]:
    """Steps of minibatches at most, and Adam's rate."""
    steps, rate = (MORE_STEPS, HIGHER_RATE) if likelihood.gaussian_noise is None else (STEPS, RATE)
    return settings.max_iter or steps, settings.learning_rate or rate


def family_steppers(
    settings: Settings, N: int, likelihood: AbstractLikelihood, prior: Any, seen: float = 1.0
) -> tuple[Any, AbstractStepper | None, dict[str, Any]]:
    """Natural gradients of the family, and Adam for all else under a `prior`: the stepper that learns everything, the
    one that settles q alone (None if there is none), and the options of `loop.fit`. The q at the start counts for
    `seen` batches, less one.

    Steps that nobody has counted (`max_iter`), under a likelihood without closed form, end when the bound is flat.
    """
    B, (steps, rate) = min(settings.batch_size, N), steps_and_rate(settings, likelihood)
    until_flat = settings.max_iter is None and likelihood.gaussian_noise is None
    optimiser = adam_until_flat(rate) if until_flat else adam(rate, steps)
    family, fixed = FAMILIES[settings.posterior], (held_points(settings), settings.tight)
    learning: Any = family.stepper(averaging(N, B, 5.0, 0.1, seen), optimiser, *fixed)
    options = {"steps": steps, "batch_size": B, "until_flat": until_flat}
    anew = likelihood.gaussian_noise is not None and family.averages
    settling = family.stepper(averaging(N, B, seen=1.0 if anew else SEEN), None, *fixed)
    return replace(learning, prior=prior), settling, options


def going_on(state: TrainState, last: TrainState) -> TrainState:
    """A state of the steps that settle q, whose rule goes on from what it has averaged in those that learned."""
    rule = last.stepper_state.rule
    return eqx.tree_at(lambda state: state.stepper_state, state, state.stepper_state._replace(rule=rule))
