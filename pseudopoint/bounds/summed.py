"""Bounds as functions of a sum over rows, for rows that are not all in memory."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.tree_util import Partial

from ..compilation import program
from ..data import Dataset
from ..devices import Devices, over_devices
from ..linalg import factorise
from ..params import Trainable
from ..posteriors import Model, Predictor, prior_factor
from ..rows import Rows
from .bound import AbstractBound, Bound, Chosen, Solution
from .collapsed import both_forms, collapsed_predictor
from .elbo import AtRows, expected_at
from .exact import residuals, row_noise
from .row_sums import statistics, whitened_sums

__all__ = ["COLLAPSED", "ELBO", "Summed", "collapsed_report", "elbo_report", "summed_gradient"]


@dataclass(frozen=True)
class Summed:
    """A bound whole(model, S) of S = Σ over chunks of part(model, chunk), which are nats or arrays of them.

    `part(tight)` is the function to sum for the tight or the standard form, the same object for the same form.
    """

    part: Callable[[bool], Callable[[Model, Dataset], Any]]
    whole: Callable[[Model, Any], AbstractBound]


@dataclass(frozen=True)
class _Statistics:
    """`Statistics` of a chunk for the collapsed bound; the standard form needs no gradient in log(1 + λd)."""

    tight: bool

    def __call__(self, model: Model, chunk: Dataset, extra: Any = 0.0) -> Any:
        Z, chunk = jnp.asarray(model.posterior.Z), residuals(model, chunk)
        Kuu = prior_factor(model.kernel, Z, model.posterior.jitter)
        s = statistics(partial(whitened_sums, model.kernel, Kuu, Z, None), chunk, row_noise(model, chunk), extra)
        s = s._replace(residual=lax.stop_gradient(s.residual))
        return s if self.tight else s._replace(log_trace=lax.stop_gradient(s.log_trace))


def _with_extra(parameters: tuple[Model, Any], chunk: Dataset) -> Any:
    return _Statistics(True)(parameters[0], chunk, parameters[1])


def _best_q(model: Model, s: Any) -> Solution:
    """`collapsed` of the sums."""
    Z = jnp.asarray(model.posterior.Z)
    Kuu = prior_factor(model.kernel, Z, model.posterior.jitter)
    B = factorise(jnp.eye(len(Z), dtype=Z.dtype) + s.H)
    predictor = Partial(collapsed_predictor, model.kernel, Z, Kuu.inverse.T @ B.solve(s.b), Kuu, B)
    return Solution(*both_forms(s, B, B.quadratic(s.b)), predictor)


@dataclass(frozen=True)
class _Expected:
    """Σ E_q[log p(yᵢ | fᵢ)] of a chunk in both forms, the tight one less the cost of v."""

    tight: bool

    def __call__(self, model: Model, chunk: Dataset) -> Any:
        def of(share: Dataset, devices: Devices) -> Any:
            at = AtRows.of(model, share)
            standard = expected_at(at, at.projection, len(share), False)
            tight = self.tight and at.likelihood.shrinks
            return devices.sum(((expected_at(at, at.projection, len(share), True) if tight else standard), standard))

        return over_devices(of, chunk)


def _own_q(model: Model, sums: Any) -> Bound:
    divergence = model.posterior.project(model.kernel).divergence
    return Bound(sums[0] - divergence, sums[1] - divergence)


COLLAPSED = Summed(_Statistics, _best_q)  # `collapsed`
ELBO = Summed(_Expected, _own_q)  # `elbo` of all rows at the model's own q


def collapsed_report(model: Model, rows: Rows) -> tuple[Any, Any, Any, Predictor]:
    """(value, standard, upper bound, predictor of the best q) of `collapsed`, in two passes over the rows."""
    s = rows.sum(_Statistics(True), model)
    above = rows.sum(_with_extra, (model, s.residual))
    return program(_of_best_q, "once")(model, s, above)


def _of_best_q(model, s, above):
    at, eye = _best_q(model, s), jnp.eye(len(s.b), dtype=s.b.dtype)
    quadratic = above.yy - factorise(eye + above.H).quadratic(above.b)
    upper = -0.5 * (s.log_noise + quadratic) - factorise(eye + s.H).half_logdet()
    return at.value, at.standard, upper, at.predictor()


def elbo_report(model: Model, rows: Rows) -> tuple[Any, Any, Any, Any]:
    """(value, standard, ∞, predictor) of `elbo` of all rows at the model's own q, in one pass."""
    return program(_of_own_q, "once")(model, rows.sum(_Expected(True), model))


def _of_own_q(model, sums):
    at = _own_q(model, sums)
    return at.value, at.standard, jnp.inf, model.predictor()


def summed_gradient(
    bound: Summed, tight: bool, penalty: Callable[[Model, Any], Any], numbers: Trainable, vector: Any, given: Any
) -> tuple[Any, Any, Any]:
    """The bound less `penalty(model, prior)`, its gradient in the trainable numbers, and no aux; `given` is
    (rows, prior).

    With S = Σ part(model, chunk), d bound/d model = ∂whole/∂model + Σ (∂part/∂model)ᵀ ∂whole/∂S: two passes over the
    rows, in which every chunk is computed again.
    """
    rows, prior = given
    chosen, part = Chosen(bound.whole, tight), bound.part(tight)
    model = program(_rebuilt)(numbers, vector)
    sums = rows.sum(part, model)
    value, of_model, of_sums = program(_slopes, None, (0, 1))(chosen, penalty, model, sums, prior)
    of_rows = rows.pull(part, model, of_sums)
    return value, program(_chained)(numbers, vector, of_model, of_rows), ()


def _rebuilt(numbers, vector):
    return numbers.rebuild(vector)


def _slopes(chosen, penalty, model, sums, prior):
    held, rest = eqx.partition(model, eqx.is_inexact_array)

    def value(held, sums):
        model = eqx.combine(held, rest)
        return chosen(model, sums) - penalty(model, prior)

    value, slopes = jax.value_and_grad(value, argnums=(0, 1))(held, sums)
    return value, *slopes


def _chained(numbers, vector, of_model, of_rows):
    _, pull = jax.vjp(lambda parts: eqx.filter(numbers.rebuild(parts), eqx.is_inexact_array), numbers.split(vector))
    return pull(jax.tree.map(jnp.add, of_model, of_rows))[0]
