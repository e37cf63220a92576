"""What experiments of Kobe's thesis share: the sinusoid, models, steppers, courses, and how two courses compare."""

from functools import cache, lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from pseudopoint.bounds import marginal
from pseudopoint.data import Dataset, dataset
from pseudopoint.gaussians import MeanChol, MeanPrecision
from pseudopoint.kernels import RBF
from pseudopoint.likelihoods import Gaussian
from pseudopoint.optimise.fullbatch import FitError
from pseudopoint.optimise.minibatch import AbstractStepper, Alternate, NaturalGradient, Optax, constant
from pseudopoint.optimise.minibatch.loop import fit
from pseudopoint.optimise.minibatch.loop import start as begin
from pseudopoint.optimise.named import standard_elbo
from pseudopoint.params import cast
from pseudopoint.posteriors import Exact, Model, Whitened
from pseudopoint.starts.hyperparameters import ulapane
from pseudopoint.starts.inducing import kmeans

from ._rows import marks, number

WHOLE = jax.jit(standard_elbo)
SHARE = 0.01  # of a climb: levels that differ by less count as one
Hyper = tuple[float, float, float]  # lengthscale, kernel variance, noise variance
TRUTH: Hyper = (0.1, 0.5, 0.01)  # of the synthetic data


def sinusoid(N: int, noise: float, seed: int) -> Dataset:
    """x uniform on [−1, 1], f(x) = sin 3πx + 0.3 cos 9πx + 0.5 sin 7πx, noise of this variance (Kobe 4.1.3)."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, N)
    f = np.sin(3 * np.pi * x) + 0.3 * np.cos(9 * np.pi * x) + 0.5 * np.sin(7 * np.pi * x)
    return dataset(x[:, None], f + np.sqrt(noise) * rng.normal(size=N))


def model_of(hyper: Hyper, posterior: Any) -> Model:
    """Squared exponential kernel and Gaussian likelihood."""
    lengthscale, variance, noise = hyper
    return cast(Model(RBF(lengthscale, variance), Gaussian(noise), posterior), "float64")


def whitened(coordinates: Any, Z: np.ndarray, jitter: float) -> Whitened:
    """q(v) = N(0, I)."""
    return Whitened(Z, coordinates(np.zeros(len(Z)), np.eye(len(Z))), jitter)


def hyperparameters(model: Model) -> jax.Array:
    """Lengthscale, kernel variance, noise variance."""
    of: Any = model
    return jnp.stack([of.kernel.lengthscale, of.kernel.variance, of.likelihood.variance])


def start(data: Dataset, M: int, noise: float) -> tuple[Hyper, np.ndarray]:
    """The thesis' start of the hyperparameters (4.1.3), and where Z starts."""
    X, y = np.asarray(data.X), np.asarray(data.y)
    return (*ulapane(X, y), noise), kmeans(X, M, 0)


def problem(
    gamma: float | None, data: Dataset, M: int, config: Any, learned: bool = False, hyper: Hyper | None = None
) -> tuple[AbstractStepper, Model]:
    """The stepper, and the thesis' start in its coordinates, or one from other hyperparameters."""
    own, Z = start(data, M, config.start_noise)
    hyper = hyper or own
    coordinates = MeanChol if gamma is None else MeanPrecision
    return stepper(gamma, config.rate, learned), model_of(hyper, whitened(coordinates, Z, config.jitter))


@cache  # another stepper is another program
def stepper(gamma: float | None, rate: float, learned: bool = False) -> AbstractStepper:
    """Adam's step first (Kobe 4.1.1); Adam alone without γ. Pseudo-points move only if they are `learned`: the thesis
    counts them neither among the hyperparameters nor among the variational parameters (4.2.1)."""
    adam, held = optax.adam(rate), () if learned else (lambda m: m.posterior.Z,)
    if gamma is None:
        return Optax(adam, held, False)
    hyper_step = Optax(adam, (lambda m: m.posterior.q, *held), False)
    return Alternate(hyper_step, NaturalGradient(constant(gamma), tight=False))


def along(
    gamma: float | None,
    data: Dataset,
    M: int,
    batch: int,
    config: Any,
    learned: bool = False,
    hyper: Hyper | None = None,
) -> dict[str, Any]:
    """The bound of all rows along the way of `config.steps` minibatch steps from the thesis' start (or from other
    hyperparameters), looked at every `config.every` steps at most; and the hyperparameters at its end."""
    rule, model = problem(gamma, data, M, config, learned, hyper)
    state = begin(model, rule, data)
    steps, bound, stopped = [0], [number(WHOLE(state.model, data))], None
    looks = set(marks(config.steps // config.every, 90))
    for look in range(1, config.steps // config.every + 1):
        try:
            state, _ = fit(state, rule, data, steps=config.every, batch_size=batch, segment=config.every)
        except FitError as error:
            stopped = str(error)
            break
        if look in looks:
            steps.append(state.step)
            bound.append(number(WHOLE(state.model, data)))
    figures = {"steps": steps, "bound": bound, "learned": [number(x) for x in hyperparameters(state.model)]}
    return figures | {"rejected": state.rejected, "stopped": stopped}


def compared(pair: tuple[dict[str, Any], dict[str, Any]]) -> dict[str, Any]:
    """Steps of both (NGD, Adam) to their common level and their ratio, their best bounds, NGD's lead at the end as a
    share of the climb, and who is ahead at the first look."""
    best = [max(row["bound"]) for row in pair]
    climb = max(best) - pair[0]["bound"][0]
    level = min(best) - SHARE * climb
    steps = [row["steps"][int(np.argmax(np.array(row["bound"]) >= level))] for row in pair]
    early = pair[0]["bound"][:2][-1] > pair[1]["bound"][:2][-1]
    ratio = max(steps[0], 1) / max(steps[1], 1)
    return {"steps": steps, "ratio": ratio, "best": best, "share": (best[0] - best[1]) / climb, "early": early}


def median(found: list[dict[str, Any]], key: str) -> float:
    """Of what `compared` found on each data set."""
    return float(np.median([of[key] for of in found]))


@lru_cache(maxsize=1)  # cases that follow each other share it
def synthetic_problem(seed: int, N: int, M: int, noise: float) -> tuple[Dataset, np.ndarray, Hyper, float]:
    """The synthetic data of section 4.2.3, where Z starts, the thesis' start of the hyperparameters with that noise
    variance, and the evidence at the truth."""
    data = synthetic(N, seed)
    hyper, Z = start(data, M, noise)
    return data, Z, hyper, float(marginal(model_of(TRUTH, Exact()), data).value)


def synthetic(N: int, seed: int) -> Dataset:
    """x uniform on [−1, 1], f drawn from the GP, noise added."""
    rng = np.random.default_rng(seed)
    lengthscale, variance, noise = TRUTH
    X = rng.uniform(-1, 1, (N, 1))
    values, vectors = np.linalg.eigh(variance * np.exp(-0.5 * ((X - X.T) / lengthscale) ** 2))
    f = (vectors * np.sqrt(np.maximum(values, 0))) @ rng.normal(size=N)
    return dataset(X, f + np.sqrt(noise) * rng.normal(size=N))
