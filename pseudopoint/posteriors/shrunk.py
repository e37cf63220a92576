"""The tight bound for any likelihood: q(f | u) at the training rows with less variance than the prior's p(f | u)."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..kernels import AbstractKernel
from ..linalg import Scalar
from ..params import Number, positive
from .base import AbstractPosterior, AbstractProjection, AbstractWrapper, Marginals

__all__ = ["ShrunkResidual", "ShrunkResidualProjection"]


class ShrunkResidualProjection(AbstractProjection):
    """q(f) of `base` with v dᵢ in place of dᵢ at the rows, at a cost of ½ CN (v − 1 − log v) nats."""

    base: AbstractProjection
    v: Scalar
    cost: Scalar
    basis = property(lambda self: self.base.basis)

    @property
    def log_prior(self) -> Scalar:
        """E_q[log p(u)] less the cost."""
        return self.base.log_prior - self.cost

    @property
    def divergence(self) -> Scalar:
        """KL[q(f, u) ‖ p(f, u)], f at the rows."""
        return self.base.divergence + self.cost

    def rows(self, X: Float[Array, "N D"]) -> Any:
        return self.base.rows(X)

    def marginals_at(self, rows: Any) -> Marginals:
        mean, explained, residual = self.base.marginals_at(rows)
        return Marginals(mean, explained, self.v * residual)

    def predictor(self) -> Any:
        """That of `base`, because p(f | u) holds at new rows."""
        return self.base.predictor()


class ShrunkResidual(AbstractWrapper):
    """`base`, with q(f | u) = N(E[f | u], v D) at the `num_data` rows of weight above 0, D = K_ff − Q_ff (methods a.3;
    Titsias 2025).

    v is one number for all rows, learned or set to its best value (`bounds.shrunk`); 1 gives the standard bound. It is
    for likelihoods that are not Gaussian: with a Gaussian one `elbo` has a vᵢ for each row. `base` may be
    `IndependentLatents`, whose functions then share v.
    """

    base: AbstractPosterior
    num_data: int = eqx.field(static=True)
    v: Float[Number, ""] = positive(default=1.0)
    num_latents = property(lambda self: self.base.num_latents)  # pyright: ignore[reportIncompatibleMethodOverride]
    unshrunk = property(lambda self: self.base)  # pyright: ignore[reportIncompatibleMethodOverride]

    def basis(self, kernel: AbstractKernel) -> Any:
        return self.base.basis(kernel)

    def on(self, basis: Any) -> ShrunkResidualProjection:
        v = jnp.asarray(self.v)
        cost = 0.5 * (self.num_latents * self.num_data) * (v - 1 - jnp.log(v))
        return ShrunkResidualProjection(self.base.on(basis), v, cost)
