"""Mean functions m(x): the prior of the latent function is GP(m, k)."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .params import Number, Readable, real


class AbstractMean(Readable):
    """m at the rows of X [N, D]: [N], or [C, N] of C latent functions. Fields are learned with all other numbers, and
    `params` constrains them.

    X are columns as a fit sees them: standardised, unless `scale_inputs=False`. m is in units of f: standard deviations
    of a real target that is standardised, else what the likelihood makes of f, such as log odds.
    """

    @abstractmethod
    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "*C N"]:
        """m(X)."""


class ConstantMean(AbstractMean):
    """m(x) = constant, of one latent function."""

    constant: Float[Number, ""] = real(default=0.0)

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "*C N"]:
        """The constant in every row."""
        return jnp.broadcast_to(self.constant, X.shape[:1])


class LinearMean(AbstractMean):
    """m(x) = weightsᵀx + constant; of C latent functions weights [C, D] and constants [C].

    The constant is not learned where `learn_constant` is False.
    """

    weights: Float[Number, "*C D"] = real()
    constant: Float[Number, "*C"] = real(learn="learn_constant", default=0.0)
    learn_constant: bool = eqx.field(static=True, default=True)

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "*C N"]:
        """X weights + constant."""
        return self.weights @ X.T + self.constant[..., None]


class ScaledMean(AbstractMean):
    """`mean` of (x − centre)/scale: a function of standardised columns, of rows in their own units."""

    mean: AbstractMean
    centre: Float[Number, " D"]
    scale: Float[Number, " D"]

    def __call__(self, X: Float[Array, "N D"]) -> Any:
        """m((X − centre)/scale)."""
        return self.mean((X - self.centre) / self.scale)
