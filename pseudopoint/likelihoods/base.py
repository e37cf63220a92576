"""What a likelihood is, and what it can do by quadrature when no closed form is known."""

from abc import abstractmethod
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..params import Number, Readable
from .quadrature import expect, expect_bounded, log_expect

__all__ = ["AbstractLikelihood", "Latent", "Moments", "Rows", "Slopes"]

Rows = Float[Number, "..."]
Latent = Float[Number, "..."] | Float[Number, "C ..."]
Slopes = tuple[Latent, Latent]


class Moments(NamedTuple):
    """Predictive mean and variance of y, each [N]."""

    mean: Rows
    variance: Rows


class AbstractLikelihood(Readable):
    """One row of y depends on the latent functions at that row: on one, f [N], or on C of them, f [C, N].

    A likelihood of one latent function needs `log_prob` and `moments`, and `cdf` for intervals; the rest follows by
    quadrature. It may give closed forms instead. `y` [N] holds numbers: for classes and counts, whole ones.
    """

    # Whether log p(y | f) is concave in each latent function: then every natural step γ ∈ (0, 1] is safe (methods d.2).
    concave: ClassVar[bool] = False
    # Whether a natural step moves the mean with the curvature of `majoriser` in place of that of log p(y | f), though
    # it is concave; where it is not, the step always does.
    majorised: ClassVar[bool] = False
    # Whether the tight bound has a v of its own for each row, `shrinkage`; not if a majoriser guides the mean.
    shrinks: ClassVar[bool] = False
    # No less than −∂² log p(y | f)/∂f² in each latent function, wherever and however it is learned.
    curvature: ClassVar[float] = float("inf")
    # Whether log p(y | f) has two derivatives in f, as Laplace's method needs.
    smooth: ClassVar[bool] = True
    # Whether numbers of its own, or the scaling of the target, do what a constant mean of f would (`Offset`).
    has_constant: ClassVar[bool] = False
    # Whether y = f + noise, f the first latent function: E[y | f] = f.
    additive: ClassVar[bool] = False
    support: ClassVar[str] = "real"  # "real", "positive", "unit", "counts" or "classes"

    @property
    def name(self) -> str:
        """What messages call it."""
        return type(self).__name__

    def base_level(self, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """Where the constant mean of f starts, given targets y [N] and weights: one number, or one for each latent
        function. 0 unless a likelihood knows better."""
        return np.zeros(self.latents if self.latents > 1 else ())

    @property
    def latents(self) -> int:
        """The number of latent functions."""
        return 1

    def at(self, noise: Rows) -> "AbstractLikelihood":
        """The likelihood of rows that carry known noise variance of their own; most have no place for it."""
        return self

    @abstractmethod
    def log_prob(self, f: Latent, y: Rows) -> Rows:
        """log p(y | f)."""

    @abstractmethod
    def moments(self, f: Latent) -> Moments:
        """Mean and variance of y given f."""

    def cdf(self, f: Latent, y: Rows) -> Rows:
        """P(Y ≤ y | f). By SciPy, as is all of `quantiles.py`: arrays of NumPy, outside of JAX's programs."""
        raise NotImplementedError(f"{type(self).__name__} has no cdf, so it has no intervals")

    def peak_hint(self, y: Rows) -> tuple[Rows, Rows]:
        """Where in f the likelihood of y changes, and over what distance: guides quadrature, never a result."""
        return jnp.zeros_like(y), jnp.ones_like(y)

    def expectation(self, mean: Latent, variance: Latent, y: Rows) -> Rows:
        """E[log p(y | f)] for f ~ N(mean, variance): the data's term in every variational bound.

        Gauss–Hermite with 20 nodes unless there is a closed form.
        """
        return expect(lambda f: self.log_prob(f, y), mean, variance)

    def log_density(self, mean: Latent, variance: Latent, y: Rows) -> Rows:
        """log E[p(y | f)] for f ~ N(mean, variance): the predictive log density (or probability) of y."""
        return log_expect(lambda f: self.log_prob(f, y), mean, variance, *self.peak_hint(y))

    def predict(self, mean: Latent, variance: Latent) -> Moments:
        """Mean and variance of y for f ~ N(mean, variance): E m(f), and E v(f) + V m(f) for moments (m, v) given f."""
        centre, width = jnp.zeros_like(mean), jnp.ones_like(mean)
        average = lambda g: jnp.exp(log_expect(lambda f: jnp.log(g(f)), mean, variance, centre, width))
        # f ↦ m(f) may have either sign: the positive and the negative part are integrated apart.
        first = average(lambda f: jnp.maximum(self.moments(f).mean, 0)) - average(
            lambda f: jnp.maximum(-self.moments(f).mean, 0)
        )
        spread = average(lambda f: self.moments(f).variance + (self.moments(f).mean - first) ** 2)
        return Moments(first, spread)

    def predictive_cdf(self, mean: Latent, variance: Latent, y: Rows) -> Rows:
        """P(Y ≤ y) = E[P(Y ≤ y | f)] for f ~ N(mean, variance); arrays of NumPy."""
        return expect_bounded(lambda f: self.cdf(f, y), mean, variance, *self.peak_hint(y))

    def shrinkage(self, residual: Rows, weight: Rows) -> Rows:
        """v* ∈ (0, 1]: how far the tight bound shrinks the residual variance dᵢ (methods a.1). 1 unless `shrinks`."""
        return jnp.ones_like(residual)

    def expectation_gradients(self, mean: Latent, variance: Latent, y: Rows) -> Slopes:
        """∂/∂mean and ∂/∂variance of `expectation`. The curvature of a row is β = −2 ∂/∂variance."""
        total = lambda mean, variance: jnp.sum(self.expectation(mean, variance, y))
        return jax.grad(total, (0, 1))(mean, variance)

    def majoriser(self, mean: Latent, variance: Latent, y: Rows, slopes: Slopes) -> Latent:
        """A curvature ω with which a step of the mean of size 1 goes up, or nearly always does (methods d.3); `slopes`
        are those of `expectation` there.

        |β| unless a likelihood knows better.
        """
        return jnp.abs(2 * slopes[1])
