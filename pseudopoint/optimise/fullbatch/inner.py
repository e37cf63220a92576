"""The optimal q for all rows at fixed hyperparameters: full natural steps under Anderson acceleration, whose means take
one Newton step together where latent functions are coupled."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.scipy.sparse.linalg import cg
from jaxtyping import Array, Float, Int

from ...bounds import AtRows, energies_at, majorises
from ...data import Dataset
from ...devices import Devices, over_devices
from ...gaussians import MeanCovariance, MeanPrecision
from ...linalg import Scalar, invert, solve_positive
from ...posteriors import Model
from ..minibatch.energy import gaussian_entropy, next_precision, two_gradients, with_q
from .anderson import Memory

__all__ = ["best_q", "converge"]

ONE = Devices(1)
REMEMBERED = 8  # changes that the acceleration uses
EXACTNESS, PRODUCTS = 0.03, 60  # of a Newton step: its residual, as a share of the gradient, and its products at most
FALLS = 6  # rejections in a row: of the accelerated step, the plain one, and 1/4, …, 1/256 of it
Steps = int | Int[Array, ""]


class _Inner(NamedTuple):
    """State of `converge`.

    `here` is the point to evaluate next, `retreat` the one after it if the bound falls there. `best` and `bound` are
    the best point so far, `gains` those of the last two accepted steps, `falls` the rejections since.
    """

    here: Float[Array, " n"]
    retreat: Float[Array, " n"]
    best: Float[Array, " n"]
    bound: Scalar
    gains: Float[Array, " 2"]
    memory: Memory
    falls: Int[Array, ""]
    steps: Int[Array, ""]


def converge(model: Model, data: Dataset, *, tight: bool = True, tolerance: float = 1e-8, steps: Steps = 100) -> Model:
    """The model with its optimal q, by full-batch natural steps of size 1 under Anderson acceleration. Where latent
    functions are coupled (`AbstractLikelihood.coupled`), their means take a Newton step together in place of natural
    steps that ignore each other (methods d.5).

    Where the accelerated step lowers the bound, or leaves the cone (its bound is NaN), the plain step is tried, then a
    quarter of it, and so on: the bound never falls. It stops when a step gains less than `tolerance` nats a row and the
    one before at most a hundred times as much, or when 1/256 of a step lowers the bound: there the error of a
    quadrature makes the expectation gradients differ from those of the bound. q is in `MeanPrecision` coordinates, and
    its value is the start.
    """

    def of(share: Dataset, devices: Devices) -> MeanPrecision:
        return best_q(AtRows.of(model, share), devices, tight=tight, tolerance=tolerance, steps=steps)

    return with_q(model, over_devices(of, data))


def best_q(
    at: AtRows, devices: Devices = ONE, *, tight: bool = True, tolerance: float = 1e-8, steps: Steps = 100
) -> MeanPrecision:
    """The q of `converge`, where what q has no part in is known, of the rows of all `devices`, each with its share."""
    data, start_q = at.batch, at.posterior.q
    count = devices.sum(jnp.count_nonzero(data.weight))
    enough = max(tolerance, 10 * float(jnp.finfo(data.X.dtype).eps)) * count
    first, unravel = ravel_pytree(jax.tree.map(jnp.asarray, start_q))

    def body(now: _Inner) -> _Inner:
        q = unravel(now.here)
        bound, image = _full_step(at, devices, q, tight)
        plain, _ = ravel_pytree(image)
        rose = bound >= now.bound - 0.1 * enough
        choose = lambda a, b: jax.tree.map(lambda x, y: jnp.where(rose, x, y), a, b)
        # The mean converges slowest, because its step neglects other latent functions or uses a majoriser; P follows.
        seen = now.memory.seen((image.mean - q.mean).ravel(), plain)
        best, memory = choose((now.here, seen), (now.best, now.memory.forget()))
        here, retreat = choose((memory.leap(), plain), (now.retreat, best + 0.25 * (now.retreat - best)))
        gains = choose(jnp.stack([bound - now.bound, now.gains[0]]), now.gains)
        bound, falls = choose((jnp.maximum(bound, now.bound), jnp.zeros_like(now.falls)), (now.bound, now.falls + 1))
        return _Inner(here, retreat, best, bound, gains, memory, falls, now.steps + 1)

    def going(now: _Inner) -> Array:
        return (now.gains[0] + 0.01 * now.gains[1] > enough) & (now.falls < FALLS) & (now.steps < steps)

    never, none = jnp.full(2, jnp.inf, first.dtype), jnp.zeros((), int)
    memory = Memory.start(jnp.ravel(start_q.mean), first, REMEMBERED)
    start = _Inner(first, first, first, -never[0], never, memory, none, none)
    return unravel(lax.while_loop(going, body, start).best)


def _full_step(at: AtRows, devices: Devices, q: MeanPrecision, tight: bool) -> tuple[Scalar, MeanPrecision]:
    """The bound, and q after a natural step of size 1 (`NaturalGradient`)."""
    cov, half_logdet = invert(q.precision)
    with_q = lambda mean, cov: at.with_q(MeanCovariance(mean, cov, known=True))
    propose = _together if at.likelihood.coupled else _apart
    value, precision, step = propose(with_q, devices, q, cov, tight)
    return value + gaussian_entropy(half_logdet, q.mean.size), MeanPrecision(q.mean + step, precision)


def _apart(with_q: Callable, devices: Devices, q: MeanPrecision, cov, tight: bool):
    """The energy, the next precision, and the step of the mean, of latent functions that do not know of each other."""
    at = with_q(q.mean, cov)
    likelihood, rows = at.likelihood, devices.count * len(at.batch)
    energies = lambda mean, cov: energies_at(with_q(mean, cov), rows, tight)
    value, (dm, dS), (_, minorant) = devices.mean(two_gradients(energies, q.mean, cov))
    precision = next_precision(likelihood, q.precision, cov, -2 * dS, 1.0)
    return value, precision, solve_positive(-2 * minorant if majorises(likelihood) else precision, dm)


def _together(with_q: Callable, devices: Devices, q: MeanPrecision, cov, tight: bool):
    """As `_apart`, with the Newton step H⁻¹ ∂E/∂m of all means of the energy E,
        H = −∂²E_q[log p(u)]/∂m∂mᵀ + Σᵢ wᵢ JᵢᵀWᵢJᵢ,
    where Jᵢm are the means of f(xᵢ), and Wᵢ is their joint curvature (methods d.5). By conjugate gradients: a product
    with H costs what the means of all rows cost. The preconditioner has a block for each function, from the majoriser.
    """
    at = with_q(q.mean, cov)
    likelihood, y, weight = at.likelihood, at.batch.y, at.batch.weight
    log_prior = lambda mean, cov: with_q(mean, cov).projection.log_prior
    of_rows = lambda mean, cov: tuple(with_q(mean, cov).projection.moments_at(at.rows))
    prior, (prior_dm, prior_dS) = jax.value_and_grad(log_prior, (0, 1))(q.mean, cov)
    moments, to_q = jax.vjp(of_rows, q.mean, cov)
    expected, to_moments = jax.vjp(lambda *moments: likelihood.expectation(*moments, y), *moments)
    slopes = to_moments(jnp.ones_like(expected))
    omega = likelihood.majoriser(*moments, y, slopes)
    terms = jnp.sum(weight * expected), to_q((weight * slopes[0], weight * slopes[1]))
    fit, (dm, dS), (_, below) = devices.sum((*terms, to_q((0 * omega, -0.5 * weight * omega))))
    _, slope_of_prior = jax.linearize(jax.grad(lambda mean: log_prior(mean, cov)), q.mean)
    _, means = jax.linearize(lambda mean: of_rows(mean, cov)[0], q.mean)
    to_mean, (blocks, _) = jax.linear_transpose(means, q.mean), invert(-2 * (below + prior_dS))

    def product(v):
        (of_fit,) = to_mean(weight * likelihood.curvature_along(y, slopes, means(v)))
        return devices.sum(of_fit) - slope_of_prior(v)

    each = lambda r: (blocks @ r[..., None])[..., 0]
    step, _ = cg(product, dm + prior_dm, tol=EXACTNESS, maxiter=PRODUCTS, M=each)
    precision = next_precision(likelihood, q.precision, cov, -2 * (dS + prior_dS), 1.0)
    return fit + prior, precision, step
