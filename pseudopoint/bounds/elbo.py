"""The bound of any q(u) under any likelihood, from minibatches, at B M²."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..data import Count, Dataset
from ..devices import Devices, over_devices
from ..likelihoods import AbstractLikelihood
from ..linalg import Scalar
from ..posteriors import AbstractPosterior, Model, ShrunkResidual
from .bound import Bound

__all__ = [
    "AtRows",
    "elbo",
    "elbo_at",
    "energies",
    "energies_at",
    "energy",
    "expected_log_likelihood",
    "majorises",
    "row_energies",
    "shrunk",
]

Total = Count | float | Scalar  # rows that a batch stands for; of a device's share of it, perhaps not a whole number


class AtRows(NamedTuple):
    """A model at the rows of a batch. Everything that does not depend on q is computed once, for many q (`with_q`)."""

    posterior: AbstractPosterior
    basis: Any
    rows: Any
    likelihood: AbstractLikelihood
    batch: Dataset

    @classmethod
    def of(cls, model: Model, batch: Dataset) -> "AtRows":
        """The model and the batch, with the factors of the basis and the covariances of rows and points."""
        basis = model.posterior.basis(model.kernel)
        rows = model.posterior.on(basis).rows(batch.X)
        return cls(model.posterior, basis, rows, model.likelihood.at(batch), batch)

    def with_q(self, q: Any) -> "AtRows":
        """The same with another q."""
        return self._replace(posterior=self.posterior.with_q(q))

    @property
    def projection(self) -> Any:
        """q(f)."""
        return self.posterior.on(self.basis)


def expected_log_likelihood(model: Model, batch: Dataset, num_data: Count, tight: bool = True):
    """(N/B) Σ_batch E_q[log p(yᵢ | fᵢ)], and the projection.

    In the tight bound q(f | u) multiplies the residual variance dᵢ by vᵢ at a cost of ½(vᵢ − 1 − log vᵢ). At the best
    vᵢ a Gaussian likelihood loses ½ log(1 + λᵢdᵢ) instead of ½ λᵢdᵢ (methods a.2). vᵢ = 1 is the standard bound (Kobe
    2.25).
    """
    at = AtRows.of(model, batch)
    return expected_at(at, at.projection, num_data, tight), at.projection


def expected_at(at: AtRows, projection, num_data, tight) -> Scalar:
    likelihood, batch = at.likelihood, at.batch
    if tight and likelihood.shrinks:
        mean, explained, d = projection.marginals_at(at.rows)
        v = likelihood.shrinkage(d, batch.weight)
        variance, cost = explained + v * d, 0.5 * jnp.sum(v - 1 - jnp.log(v))
    else:
        (mean, variance), cost = projection.moments_at(at.rows), 0.0
    fit = jnp.sum(batch.weight * likelihood.expectation(mean, variance, batch.y))
    return (num_data / len(batch)) * (fit - cost)


def elbo(model: Model, batch: Dataset, num_data: Count) -> Bound:
    """E_q[log p(y | f)] − KL[q(u) ‖ p(u)], unbiased from a batch of `num_data` rows  (Kobe 2.25, with its erratum)."""
    return _averaged(lambda share, total: elbo_at(AtRows.of(model, share), total), batch, num_data)


def elbo_at(at: AtRows, num_data: Total) -> Bound:
    """`elbo` of a model at known rows."""
    projection = at.projection
    standard = expected_at(at, projection, num_data, False)
    value = expected_at(at, projection, num_data, True) if at.likelihood.shrinks else standard
    return Bound(value - projection.divergence, standard - projection.divergence)


def energy(model: Model, batch: Dataset, num_data: Count, tight: bool = True) -> Scalar:
    """E_q[log p(y | f)] + E_q[log p(u)]: the bound without the entropy of q.

    It does not factorise S. A natural step differentiates the energy alone, because the natural gradient of the entropy
    is −θ.
    """
    expected, projection = expected_log_likelihood(model, batch, num_data, tight)
    return expected + projection.log_prior


def energies(model: Model, batch: Dataset, num_data: Count, tight: bool = True) -> tuple[Scalar, Scalar]:
    """The `energy`, and from the same pass its minorant −½ (N/B) Σ ωᵢ V fᵢ + E_q[log p(u)] with constant ωᵢ.

    −2 ∂/∂S of the minorant is a precision P_ω with which a step of the mean of size 1 does not decrease the bound,
    whatever the curvature of log p(y | f) (methods d.3). For likelihoods that need no majoriser (`majorises`) the
    second value is the energy, and P_ω is P*. The values have first derivatives only.
    """
    return _averaged(lambda share, total: energies_at(AtRows.of(model, share), total, tight), batch, num_data)


def _averaged(estimate: Callable[[Dataset, Total], Any], batch: Dataset, num_data: Count) -> Any:
    """estimate(batch, num_data), where devices share the rows: estimates are unbiased, and so is their mean."""

    def of(share: Dataset, devices: Devices) -> Any:
        if devices.count == 1:
            return estimate(share, num_data)
        # Each estimates from a share of the B rows; what fills the share up is none of them.
        return devices.mean(estimate(share, num_data * (devices.count * len(share) / len(batch))))

    return over_devices(of, batch)


def energies_at(at: AtRows, num_data: Total, tight: bool = True) -> tuple[Scalar, Scalar]:
    """`energies` of a model at known rows."""
    of_rows, below = row_energies(at, num_data, tight)
    log_prior = at.projection.log_prior
    return of_rows + log_prior, below + log_prior


def row_energies(at: AtRows, num_data: Total, tight: bool = True) -> tuple[Scalar, Scalar]:
    """`energies` without E_q[log p(u)]: the part of them that is a sum over rows."""
    projection, batch, scale = at.projection, at.batch, num_data / len(at.batch)
    if not majorises(at.likelihood):
        value = expected_at(at, projection, num_data, tight)
        return value, value
    numbers, rest = eqx.partition(at.likelihood, eqx.is_inexact_array)
    here = numbers, *projection.moments_at(at.rows)
    # E + (gradients)ᵀ(x − constants) has the value and the first derivatives of E. The gradients are computed with the
    # value, at constants, and also give ω: without this the quadrature would run twice, and ω would be differentiated.
    constants = lax.stop_gradient(here)
    given = lambda numbers, mean, variance: eqx.combine(numbers, rest).expectation(mean, variance, batch.y)
    expected, pull = jax.vjp(given, *constants)
    along = jax.tree.map(lambda slope, x, c: jnp.sum(slope * (x - c)), pull(batch.weight), here, constants)
    fit = jnp.sum(batch.weight * expected) + sum(jax.tree.leaves(along))
    (numbers, mean, variance), (_, *slopes) = constants, pull(jnp.ones_like(expected))
    omega = eqx.combine(numbers, rest).majoriser(mean, variance, batch.y, tuple(slopes))
    below = -0.5 * jnp.sum(batch.weight * omega * here[2])
    return scale * fit, scale * below


def majorises(likelihood: AbstractLikelihood) -> bool:
    """Whether steps of the mean use the curvature of a majoriser instead of that of log p(y | f)."""
    return likelihood.majorised or not likelihood.concave


def shrunk(model: Model, data: Dataset, iterations: int = 30) -> Model:
    """The model with the posterior `ShrunkResidual`, whose v maximises the bound of all rows for the model's q.

    With N rows of weight above 0, v = 1/(1 + Σ wᵢβᵢdᵢ/CN), βᵢ = −2 ∂E[log p(yᵢ | f)]/∂variance at explained + v dᵢ
    (methods a.3), by fixed-point iterations from v = 1.
    """
    return _shrunk(model, data, int(np.sum(np.asarray(data.weight) > 0)), iterations)


@partial(jax.jit, static_argnums=(2, 3))
def _shrunk(model: Model, data: Dataset, N: int, iterations: int) -> Model:
    base = model.posterior.unshrunk
    mean, explained, d = base.project(model.kernel).marginals(data.X)
    likelihood, values = model.likelihood.at(data), N * d.size / len(data)

    def better(_, v):
        fit = lambda v: jnp.sum(data.weight * likelihood.expectation(mean, explained + v * d, data.y))
        # β may be negative if the log density is not concave. Then v may exceed 1, up to 2.
        return 1 / (1 + jnp.maximum(-2 * jax.grad(fit)(v) / values, -0.5))

    v = lax.fori_loop(0, iterations, better, jnp.ones((), data.X.dtype))
    posterior = ShrunkResidual(base=base, num_data=N, v=v)  # pyright: ignore[reportCallIssue]
    return Model(model.kernel, model.likelihood, posterior)
