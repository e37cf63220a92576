"""A likelihood around another, which only changes its latent function."""

from typing import Any, ClassVar

import equinox as eqx

from .base import AbstractLikelihood, Latent, PerRow, Slopes


def _same(name: str) -> Any:
    """The attribute of the likelihood inside."""
    return property(lambda self: getattr(self.likelihood, name))


class AbstractWrapper(AbstractLikelihood):
    """What holds of p(y | f) whatever f's mean is, is that of the `likelihood` inside."""

    likelihood: eqx.AbstractVar[AbstractLikelihood]

    concave = _same("concave")
    majorised = _same("majorised")
    coupled = _same("coupled")
    additive = _same("additive")
    varying_noise = _same("varying_noise")
    heavy_tails = _same("heavy_tails")
    shrinks = _same("shrinks")
    smooth = _same("smooth")
    curvature = _same("curvature")
    support = _same("support")
    ordered = _same("ordered")
    rates = _same("rates")
    has_constant: ClassVar[bool] = True

    name = _same("name")  # pyright: ignore[reportIncompatibleMethodOverride]
    latents = _same("latents")  # pyright: ignore[reportIncompatibleMethodOverride]
    classes = _same("classes")  # pyright: ignore[reportIncompatibleMethodOverride]
    gaussian_noise = _same("gaussian_noise")  # pyright: ignore[reportIncompatibleMethodOverride]

    def curvature_along(self, y: PerRow, slopes: Slopes, v: Latent) -> Latent:
        return self.likelihood.curvature_along(y, slopes, v)
