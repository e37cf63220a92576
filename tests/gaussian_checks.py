"""What every coordinate system of a Gaussian must do: `conformance.GAUSSIANS` names them."""

# Fields take floats and NumPy arrays and become JAX arrays under jit; a type checker knows the last alone.
# pyright: reportArgumentType=false

from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from pseudopoint.gaussians import AbstractGaussian, Natural

Array = np.ndarray


def moments(M: int = 6, scale: float = 1.0) -> tuple[Array, Array]:
    """A mean and a covariance of the given size, neither diagonal nor close to the identity."""
    rng = np.random.default_rng(7)
    R = rng.normal(size=(M, M))
    return rng.normal(size=M), scale * (R @ R.T / M + 0.1 * np.eye(M))


def natural(m: Array, S: Array) -> Natural:
    """θ = (S⁻¹m, −½S⁻¹) by NumPy."""
    P = np.linalg.inv(S)
    return Natural(P @ m, -0.25 * (P + P.T))


class Coordinates(NamedTuple):
    """q from θ, all that it says, and q again from its own θ."""

    q: Any
    covariance: Any
    half_logdet: Any
    entropy: Any
    theta: Any
    again: Any


@partial(jax.jit, static_argnums=0)
def from_natural(cls: type[AbstractGaussian], theta: Natural) -> Coordinates:
    """All of a Gaussian in one compilation."""
    q = cls.from_natural(theta)
    back = q.to_natural()
    return Coordinates(q, q.covariance(), q.half_logdet(), q.entropy(), back, cls.from_natural(back))


def assert_close(ours: Any, truth: Any, rtol: float) -> None:
    """Every array of the tree agrees to `rtol` of its largest entry."""
    for mine, true in zip(jax.tree.leaves(ours), jax.tree.leaves(truth), strict=True):
        np.testing.assert_allclose(mine, true, rtol=0, atol=rtol * float(np.abs(true).max()))


def check_moments(cls: type[AbstractGaussian]) -> None:
    for scale in (1.0, 1e-8, 1e8):  # a jitter of 1e-6 or 1e-8 would show in all digits of the second
        m, S = moments(scale=scale)
        of = from_natural(cls, natural(m, S))
        assert_close((of.q.mean, of.covariance), (m, S), rtol=1e-12)


def check_small_directions_keep_their_digits(cls: type[AbstractGaussian]) -> None:
    m, S = moments()
    units = np.array([1.0, 1e-4, 1e3, 1.0, 1e-6, 1e-2])
    P = np.linalg.inv(S) / np.outer(units, units)
    of = from_natural(cls, Natural(P @ (units * m), -0.25 * (P + P.T)))
    assert_close((of.q.mean / units, of.covariance / np.outer(units, units)), (m, S), rtol=1e-9)


def check_natural_round_trips(cls: type[AbstractGaussian]) -> None:
    for scale in (1.0, 1e-8, 1e8):
        theta = natural(*moments(scale=scale))
        of = from_natural(cls, theta)
        assert_close(of.theta, theta, rtol=1e-10)
        assert_close(of.again, of.q, rtol=1e-10)


def check_entropy(cls: type[AbstractGaussian]) -> None:
    for scale in (1.0, 1e-8):
        m, S = moments(scale=scale)
        of = from_natural(cls, natural(m, S))
        np.testing.assert_allclose(of.half_logdet, 0.5 * np.linalg.slogdet(S)[1], rtol=1e-12)
        np.testing.assert_allclose(of.entropy, 0.5 * np.linalg.slogdet(2 * np.pi * np.e * S)[1], rtol=1e-12)


def check_not_positive_definite_is_nan(cls: type[AbstractGaussian]) -> None:
    m, S = moments()
    S = S - 2 * np.linalg.eigvalsh(S)[0] * np.eye(6)  # one negative eigenvalue
    assert np.isnan(from_natural(cls, natural(m, S)).entropy)


GAUSSIAN_CHECKS = (
    check_moments,
    check_small_directions_keep_their_digits,
    check_natural_round_trips,
    check_entropy,
    check_not_positive_definite_is_nan,
)
