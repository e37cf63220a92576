"""The tight bound for any likelihood: what the pseudo-points leave open at the rows is surer than the prior says."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..kernels import AbstractKernel
from ..linalg import Scalar
from ..params import Number, positive
from .base import AbstractPosterior, Marginals
from .latents import IndependentLatents

__all__ = ["ShrunkResidual", "ShrunkResidualProjection"]


class ShrunkResidualProjection(eqx.Module):
    """As `base`, with v dᵢ in place of dᵢ at the rows, for a cost of ½ CN (v − 1 − log v) nats."""

    base: Any
    v: Scalar
    rows: int = eqx.field(static=True)

    @property
    def _cost(self):
        return 0.5 * self.rows * (self.v - 1 - jnp.log(self.v))

    @property
    def log_prior(self) -> Scalar:
        """E_q[log p(u)] less the cost."""
        return self.base.log_prior - self._cost

    @property
    def divergence(self) -> Scalar:
        """KL[q(f, u) ‖ p(f, u)], f at the rows."""
        return self.base.divergence + self._cost

    def marginals(self, X: Float[Array, "N D"]) -> Marginals:
        """q(f) at rows of the training table."""
        mean, explained, residual = self.base.marginals(X)
        return Marginals(mean, explained, self.v * residual)

    def moments(self, X: Float[Array, "N D"]) -> tuple[Float[Array, "*C N"], Float[Array, "*C N"]]:
        """As `marginals`."""
        return self.marginals(X).moments

    def predictor(self) -> Any:
        """That of `base`: away from the rows nothing is surer than the prior says."""
        return self.base.predictor()


class ShrunkResidual(AbstractPosterior):
    """`base`, with q(f | u) = N(E[f | u], v D) at the `num_data` rows, D = K_ff − Q_ff (methods a.3; Titsias 2025).

    v is one number for all rows, learned or at its best value (`bounds.shrunk`); 1 gives the standard bound. It serves
    any likelihood. A Gaussian one needs it not: `elbo` has a vᵢ of its own for each row there. `base` may be
    `IndependentLatents`, which then share v.
    """

    base: AbstractPosterior
    num_data: int = eqx.field(static=True)
    v: Float[Number, ""] = positive(default=1.0)

    # Any: `trainable` walks models of numbers that stand for places.
    @property
    def Z(self) -> Any:
        """The pseudo-points of `base`."""
        return self.base.Z

    @property
    def q(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """That of `base`."""
        return self.base.q

    @property
    def jitter(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """That of `base`."""
        return self.base.jitter

    def project(self, kernel: AbstractKernel) -> ShrunkResidualProjection:
        """That of `base`, and the cost."""
        C = jax.tree.leaves(self.base.q)[0].shape[0] if isinstance(self.base, IndependentLatents) else 1
        return ShrunkResidualProjection(self.base.project(kernel), jnp.asarray(self.v), C * self.num_data)
