"""What a likelihood is, and how quadrature serves it where no closed form is known."""

from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..params import Number, Readable
from .quadrature import expect, expect_bounded, in_blocks, log_expect

__all__ = ["AbstractLikelihood", "Moments"]

PerRow = Float[Number, "..."]
Latent = Float[Number, "..."] | Float[Number, "C ..."]
Slopes = tuple[Latent, Latent]


class Moments(NamedTuple):
    """Predictive mean and variance of y, each [N]."""

    mean: PerRow
    variance: PerRow


class AbstractLikelihood(Readable):
    """y [N] given one latent function at the same rows, f [N], or C of them, f [C, N].

    A likelihood of one latent function needs `log_prob` and `moments`, and `cdf` for intervals; the rest follows by
    quadrature, unless it gives closed forms. Classes and counts are whole numbers in y.
    """

    # Whether log p(y | f) is concave in each latent function: then every natural step γ ∈ (0, 1] is safe (methods d.2).
    concave: ClassVar[bool] = False
    # Whether a natural step of a concave likelihood moves the mean with the curvature of `majoriser` instead of that of
    # log p(y | f). For others it always does.
    majorised: ClassVar[bool] = False
    # Whether `curvature_along` couples the latent functions.
    coupled: ClassVar[bool] = False
    # Whether the tight bound optimises `shrinkage` for each row; not if a majoriser guides the mean.
    shrinks: ClassVar[bool] = False
    # An upper bound on −∂² log p(y | f)/∂f² in each latent function, for all parameters.
    curvature: ClassVar[float] = float("inf")
    # Whether log p(y | f) has two derivatives in f, as Laplace's method needs.
    smooth: ClassVar[bool] = True
    # Whether its own parameters, or the scaling of the target, make a constant mean of f (`Offset`) needless.
    has_constant: ClassVar[bool] = False
    # Whether y = f + noise that is symmetric about 0, f the first latent function: E[y | f] = f.
    additive: ClassVar[bool] = False
    # Whether y = f₁ + N(0, scale² e^{2f₂}): a Gaussian likelihood for f₁ given f₂, so that two fits in turn learn both;
    # and whether such noise is Student-t instead, whose rows have precisions besides.
    varying_noise: ClassVar[bool] = False
    heavy_tails: ClassVar[bool] = False
    # Whether y counts what a rate makes, y ~ p(y | f + log E) for an exposure E, with log p(y | f + log E) equal to
    # E log p(y/E | f) up to a constant.
    rates: ClassVar[bool] = False
    # Whether classes have an order, so that their numbers are a target of regression too.
    ordered: ClassVar[bool] = False
    support: ClassVar[str] = "real"  # "real", "positive", "unit", "counts" or "classes"

    @property
    def name(self) -> str:
        """Its name in messages."""
        return type(self).__name__

    def base_level(self, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """The initial constant mean of f for targets y [N] and weights [N]: one number, or one for each of several
        latent functions. 0 unless a likelihood knows better."""
        return np.zeros(self.latents if self.latents > 1 else ())

    @property
    def latents(self) -> int:
        """The number of latent functions."""
        return 1

    @property
    def classes(self) -> int:
        """The number of classes that y is one of; 0 for other targets."""
        return 0

    @property
    def gaussian_noise(self) -> PerRow | None:
        """The noise variance σ² where y = f + N(0, σ²), one number or after `at` one a row: then the posterior is known
        in closed form. None for all other likelihoods."""
        return None

    def parts(self) -> tuple["AbstractLikelihood", PerRow | None]:
        """The likelihood without the constant mean that an `Offset` adds to f, and that constant, or None."""
        return self, None

    @property
    def warped(self) -> tuple["AbstractLikelihood", Any] | None:
        """The likelihood of w(y) and the warp w, where y itself is a monotone function of a target (`Warped`)."""
        return None

    @property
    def mean_function(self) -> Any:
        """The mean function that an `Around` adds to f, None for others."""
        return None

    def latent_mean(self, X: Any) -> Any:
        """The mean m(X) of the latent functions that an `Around` adds, None for others."""
        return None

    def with_parts(self, likelihood: "AbstractLikelihood", constant: PerRow | None) -> "AbstractLikelihood":
        """The likelihood of other `parts`."""
        return likelihood

    def noise_times(self, factor: float) -> "AbstractLikelihood":
        """The likelihood with `factor` times the noise variance, for those of y = f + noise."""
        raise NotImplementedError(f"{type(self).__name__} has no noise of one variance")

    def at(self, rows: Any) -> "AbstractLikelihood":
        """The likelihood of the rows of a `Dataset`: with their known noise, which most likelihoods ignore."""
        return self

    @abstractmethod
    def log_prob(self, f: Latent, y: PerRow) -> PerRow:
        """log p(y | f)."""

    @abstractmethod
    def moments(self, f: Latent) -> Moments:
        """Mean and variance of y given f."""

    def cdf(self, f: Latent, y: PerRow) -> PerRow:
        """P(Y ≤ y | f). By SciPy on NumPy arrays, outside of JAX's programs, as all of `intervals.py`."""
        raise NotImplementedError(f"{type(self).__name__} has no cdf, so it has no intervals")

    def peak_hint(self, y: PerRow) -> tuple[PerRow, PerRow]:
        """Where in f the likelihood of y changes, and over what distance. It only guides quadrature."""
        return jnp.zeros_like(y), jnp.ones_like(y)

    def expectation(self, mean: Latent, variance: Latent, y: PerRow) -> PerRow:
        """E[log p(y | f)] for f ~ N(mean, variance): the data's term in every variational bound. By Gauss–Hermite with
        20 nodes unless there is a closed form."""
        return expect(lambda f: self.log_prob(f, y), mean, variance)

    def log_density(self, mean: Latent, variance: Latent, y: PerRow) -> PerRow:
        """log E[p(y | f)] for f ~ N(mean, variance): the predictive log density (or probability) of y."""
        return log_expect(lambda f: self.log_prob(f, y), mean, variance, *self.peak_hint(y))

    def predict(self, mean: Latent, variance: Latent) -> Moments:
        """Mean and variance of y for f ~ N(mean, variance): E m(f), and E v(f) + V m(f) for moments (m, v) given f."""
        centre, width = jnp.zeros_like(mean), jnp.ones_like(mean)
        average = lambda g: jnp.exp(log_expect(lambda f: jnp.log(g(f)), mean, variance, centre, width))
        # f ↦ m(f) may have either sign: the positive and the negative part are integrated apart.
        above, below = (average(lambda f, s=s: jnp.maximum(s * self.moments(f).mean, 0)) for s in (1, -1))
        first = above - below
        spread = average(lambda f: self.moments(f).variance + (self.moments(f).mean - first) ** 2)
        return Moments(first, spread)

    def normal(self, mean: Latent, variance: Latent) -> Moments:
        """Mean and variance of the normal variable that stands for y under a warp, whose mean may not exist: those of
        `predict`, unless the tails of y are too heavy for them."""
        return self.predict(mean, variance)

    def latent(self, mean: Latent, variance: Latent) -> tuple[Latent, Latent]:
        """Mean and variance of the functions by which the target is described: these, unless near rows move them."""
        return mean, variance

    def predictive_cdf(self, mean: Latent, variance: Latent, y: PerRow) -> PerRow:
        """P(Y ≤ y) = E[P(Y ≤ y | f)] for f ~ N(mean, variance); NumPy arrays."""
        centre, width = (x.reshape(np.shape(y)) for x in in_blocks(_peak_hint, self, np.ravel(y)))
        return expect_bounded(lambda f: self.cdf(f, y), mean, variance, centre, width)

    def shrinkage(self, residual: PerRow, weight: PerRow) -> PerRow:
        """v* ∈ (0, 1], by which the tight bound multiplies the residual variance dᵢ (methods a.1). 1 unless
        `shrinks`."""
        return jnp.ones_like(residual)

    def expectation_gradients(self, mean: Latent, variance: Latent, y: PerRow) -> Slopes:
        """∂/∂mean and ∂/∂variance of `expectation`. The curvature of a row is β = −2 ∂/∂variance."""
        total = lambda mean, variance: jnp.sum(self.expectation(mean, variance, y))
        return jax.grad(total, (0, 1))(mean, variance)

    def majoriser(self, mean: Latent, variance: Latent, y: PerRow, slopes: Slopes) -> Latent:
        """A curvature ω with which a step of the mean of size 1 (nearly) always goes up (methods d.3). |β| unless a
        likelihood knows better. `slopes` are the gradients of `expectation` there."""
        return jnp.abs(2 * slopes[1])

    def curvature_along(self, y: PerRow, slopes: Slopes, v: Latent) -> Latent:
        """W v, where W [C, C] is an upper bound of −E ∂² log p(y | f)/∂f∂fᵀ at each row, for directions v [C, N]. For
        `coupled` likelihoods; `slopes` are those of `majoriser`."""
        raise NotImplementedError(f"the latent functions of {type(self).__name__} are not coupled")


@jax.jit
def _peak_hint(likelihood, y):
    return jnp.stack(likelihood.peak_hint(y))
