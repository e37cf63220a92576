"""The models of the decoupled paper's figure 2c and table 2, trained for the same time.

Every model starts from k-means points and the same hyperparameters, and learns Z, O and hyperparameters with Adam from
minibatches. "NAT" moves q by natural gradients, the others by Adam too; the coefficients a of O by Adam in both, as in
the paper's own code. HYBRID has its original form, with the covariance of (8), as in the paper's experiments.
`milliseconds` are medians of a step's time, measured in turn at the start of a table; a model gets as many steps as fit
into the seconds by these.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from pseudopoint.data import Dataset
from pseudopoint.kernels import AbstractKernel
from pseudopoint.likelihoods import AbstractLikelihood
from pseudopoint.optimise.fullbatch import FitError
from pseudopoint.optimise.minibatch import AbstractStepper, NaturalGradient, Optax, OrthogonalNaturalGradient, averaging
from pseudopoint.optimise.minibatch.loop import fit, start
from pseudopoint.posteriors import IndependentLatents, Model
from pseudopoint.starts.hyperparameters import named_kernel
from pseudopoint.starts.inducing import candidates

from ._decoupled import model_of
from .settings import in_turn


class Method(NamedTuple):
    """A family, how q moves, and whether m and a move together (ours)."""

    family: str
    natural: bool = False
    joint: bool = False


METHODS = {
    "ORTHNAT": Method("orthogonal", True),
    "ORTH": Method("orthogonal"),
    "COUPLEDNAT": Method("coupled", True),
    "COUPLED": Method("coupled"),
    "HYBRID": Method("original hybrid"),
    "DECOUPLED": Method("decoupled"),
}
JOINT = "ORTHNAT, joint"
EVERY = METHODS | {JOINT: Method("orthogonal", True, True)}


class Points(NamedTuple):
    """β and γ of the decoupled models, β of the coupled ones."""

    beta: np.ndarray
    gamma: np.ndarray
    coupled: np.ndarray


def points_of(data: Dataset, config: Any) -> Points:
    """As many as the config has of each: k-means centres of at most 10,000 rows or 20 a point."""
    place = lambda M, seed: candidates("kmeans", kernel_of(data), data, M, seed)["kmeans"]
    return Points(place(config.beta, 0), place(config.gamma, 1), place(config.coupled, 0))


def kernel_of(data: Dataset) -> AbstractKernel:
    """Matérn-5/2, a lengthscale √D for each input, variance 1."""
    D = data.X.shape[1]
    return named_kernel("matern52", float(np.sqrt(D)), 1.0, D)


def begin(method: str, data: Dataset, points: Points, likelihood: AbstractLikelihood) -> Model:
    """The model at its start; with several latent functions, all at the same."""
    family, natural, _ = EVERY[method]
    Z = points.coupled if family == "coupled" else points.beta
    model, C = model_of(family, natural, kernel_of(data), likelihood, Z, points.gamma), likelihood.latents
    if C == 1:
        return model
    own = lambda posterior: [getattr(posterior, name) for name in posterior.own]
    tiled = jax.tree.map(lambda x: jnp.tile(x, (C,) + (1,) * x.ndim), own(model.posterior))
    several = IndependentLatents(base=eqx.tree_at(own, model.posterior, tiled))  # pyright: ignore[reportCallIssue]
    return Model(model.kernel, likelihood, several)


@cache  # another stepper is another program
def stepper_of(method: str, N: int, batch: int, rate: float) -> AbstractStepper:
    """γ as by default in this library."""
    _, natural, joint = EVERY[method]
    adam, gamma = optax.adam(rate), averaging(N, batch, 5.0, 0.1)
    if joint:
        return OrthogonalNaturalGradient(gamma, hyper_optimiser=adam, tight=False)
    return NaturalGradient(gamma, adam, (), False) if natural else Optax(adam, (), False)


def paces(models: dict[str, Model], data: Dataset, config: Any) -> dict[str, float]:
    """Milliseconds of a step, by method."""
    steppers = {name: stepper_of(name, len(data), config.batch, config.rate) for name in models}
    states = {name: start(model, steppers[name], data) for name, model in models.items()}
    once = lambda name: _advance(states[name], steppers[name], data, 1, config).model
    seconds = in_turn({name: (lambda name=name: once(name)) for name in models}, config.rounds)
    return {name: round(1e3 * of / config.segment, 2) for name, of in seconds.items()}


def fitting(config: Any, milliseconds: float) -> int:
    """How many steps fit into the seconds."""
    return config.segment * int(1e3 * config.seconds / (milliseconds * config.segment))


def trained(
    method: str, model: Model, data: Dataset, config: Any, look: Callable[[Model], Any], looks: int, steps: int
) -> dict[str, Any]:
    """What `look` sees of the model at the start and so many times along the steps; the looks take no time."""
    stepper = stepper_of(method, len(data), config.batch, config.rate)
    total = max(1, steps // config.segment)
    at = sorted({max(1, round(total * i / looks)) for i in range(1, looks + 1)})
    state, made, seen, stopped = start(model, stepper, data), [0], [look(model)], None
    for first, last in zip([0, *at[:-1]], at, strict=True):
        try:
            state = _advance(state, stepper, data, last - first, config)
        except FitError as error:
            stopped = str(error)
            break
        made.append(state.step)
        seen.append(look(state.model))
    return {"steps": made, "seen": seen, "rejected": state.rejected, "stopped": stopped}


def _advance(state, stepper, data, segments, config):
    """Segments of one length, for another is another program."""
    steps = segments * config.segment
    return fit(state, stepper, data, steps=steps, batch_size=config.batch, segment=config.segment)[0]
