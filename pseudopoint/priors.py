"""Prior densities of the numbers of a kernel and a likelihood, by name, for fits that maximise bound + log prior.

A density is that of the number as a person reads it, such as a lengthscale, whatever the optimiser moves: there is no
Jacobian. So what a fit finds is the maximum a posteriori (MAP) of these numbers.
"""

import ast
import dataclasses
import math
import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Float

from .params import Number, Readable, positive, real

ALIASES = {"noise_variance": "likelihood.variance"}
ONE = re.compile(r"\s*([\w.]+)\s*=\s*(\w+)\s*(\([^()]*\))\s*(?:,|$)")


class AbstractPrior(Readable):
    """The density of one number x; numbers of an array are independent."""

    @abstractmethod
    def log_density(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """log p(x), −∞ or NaN where x cannot be."""


def _log_normal(x, mean, std):
    mean, std = jnp.asarray(mean, x.dtype), jnp.asarray(std, x.dtype)
    return -0.5 * ((x - mean) / std) ** 2 - jnp.log(std) - 0.5 * math.log(2 * math.pi)


class Normal(AbstractPrior):
    """x ~ N(mean, std²)."""

    mean: Float[Number, ""] = real(default=0.0)
    std: Float[Number, ""] = positive(default=1.0)

    def log_density(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """−½ ((x − mean)/std)² − log std − ½ log 2π."""
        return _log_normal(x, self.mean, self.std)


class LogNormal(AbstractPrior):
    """log x ~ N(mu, sigma²): the median of x is e^mu, its mode e^(mu − sigma²)."""

    mu: Float[Number, ""] = real(default=0.0)
    sigma: Float[Number, ""] = positive(default=1.0)

    def log_density(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """log N(log x; mu, sigma²) − log x."""
        return _log_normal(jnp.log(x), self.mu, self.sigma) - jnp.log(x)


class HalfNormal(AbstractPrior):
    """x = |z|, z ~ N(0, scale²)."""

    scale: Float[Number, ""] = positive(default=1.0)

    def log_density(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """log 2 + log N(x; 0, scale²) for x ≥ 0."""
        return jnp.where(x >= 0, math.log(2) + _log_normal(x, 0.0, self.scale), -jnp.inf)


class Gamma(AbstractPrior):
    """x ~ Gamma(shape, rate), whose mean is shape/rate."""

    shape: Float[Number, ""] = positive(default=2.0)
    rate: Float[Number, ""] = positive(default=1.0)

    def log_density(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """shape log rate − log Γ(shape) + (shape − 1) log x − rate x."""
        a, b = jnp.asarray(self.shape, x.dtype), jnp.asarray(self.rate, x.dtype)
        return a * jnp.log(b) - gammaln(a) + (a - 1) * jnp.log(x) - b * x


KINDS = {kind.__name__: kind for kind in (Normal, LogNormal, HalfNormal, Gamma)}


def parsed(text: str) -> dict[str, AbstractPrior]:
    """Priors in words, as `lengthscale=LogNormal(0, 1), noise_variance=HalfNormal(0.1)`. Raises ValueError."""
    found, end = {}, 0
    while end < len(text):
        part = ONE.match(text, end)
        if part is None or part[2] not in KINDS:
            raise ValueError(
                f"priors={text!r} cannot be read from {text[end:].strip()!r} on: write NAME=PRIOR(NUMBERS), with "
                f"commas between, where PRIOR is one of {', '.join(KINDS)}"
            )
        try:
            numbers = ast.literal_eval(f"{part[3][:-1]},)" if part[3][1:-1].strip() else "()")
            found[part[1]] = KINDS[part[2]](*numbers)
        except (SyntaxError, TypeError, ValueError) as error:
            raise ValueError(f"priors={text!r}: {part[2]}{part[3]} is no prior: {error}") from None
        end = part.end()
    return found


class FieldPriors(eqx.Module):
    """Priors by the names of numbers of a model.

    The numbers of a model have paths, such as `kernel.lengthscale`, `kernel.kernels.0.variance` of a sum's first kernel
    and `likelihood.variance`; a kernel or likelihood that only wraps another adds nothing to a path. A name is a path
    or the end of one, then of all that have it; `noise_variance` is `likelihood.variance`.
    """

    each: Mapping[str, AbstractPrior]

    def log_density(self, model: Any) -> Float[Array, ""]:
        """Σ log p(x) over all numbers x that have a prior."""
        found = [prior.log_density(jnp.asarray(x)) for name, prior in self.each.items() for x in _named(model, name)[1]]
        return sum(map(jnp.sum, found[1:]), jnp.sum(found[0])) if found else jnp.zeros(())

    @property
    def of_lengthscales(self) -> bool:
        """Whether one of the priors is of lengthscales."""
        return any(name.split(".")[-1] == "lengthscale" for name in self.each)

    def refuse_unfit(self, model: Any) -> None:
        """Raises ValueError for a name that no number has, or numbers of kernel and likelihood both, and for a prior
        that has no density at the number where a fit starts."""
        for name, prior in self.each.items():
            paths, values = _named(model, name)
            if not paths:
                raise ValueError(f"priors: no number of this model is called {name!r}: use {', '.join(_paths(model))}")
            if len({path.split(".")[0] for path in paths}) > 1:
                raise ValueError(f"priors: {name!r} is {' and '.join(paths)}: write which")
            for value in values:
                if not np.isfinite(prior.log_density(jnp.asarray(value))).all():
                    raise ValueError(f"priors: {prior} of {name!r} has no density at {value}, where the fit starts")


def _named(model: Any, name: str) -> tuple[list[str], list[Any]]:
    """Paths and values of the numbers of that name."""
    name = ALIASES.get(name, name)
    found = [(path, x) for path, x in _paths(model).items() if f".{path}".endswith(f".{name}")]
    return [path for path, _ in found], [x for _, x in found]


def _paths(model: Any) -> dict[str, Any]:
    """The numbers of kernel and likelihood that are learned, by path."""
    parts = ("kernel", model.kernel), ("likelihood", model.likelihood)
    return {".".join(path): x for name, part in parts for path, x in _numbers(part, (name,))}


def _numbers(node: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(node, eqx.Module):
        for field in dataclasses.fields(node):
            learn = field.metadata.get("learn")
            if not field.metadata.get("static", False) and (learn is None or getattr(node, learn)):
                inside = path if field.name in ("kernel", "likelihood") else (*path, field.name)
                yield from _numbers(getattr(node, field.name), inside)
    elif isinstance(node, list | tuple):
        for i, child in enumerate(node):
            yield from _numbers(child, (*path, str(i)))
    elif eqx.is_inexact_array(node) or isinstance(node, np.ndarray) and node.dtype.kind == "f":
        yield path, node
