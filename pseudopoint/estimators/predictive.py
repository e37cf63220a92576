"""What estimators compute from a predictor, a likelihood p(y | f) and scaled rows X [N, D].

All but draws and joint covariances are compiled and applied in blocks of rows by `serving.evaluate`. `shift`, of one
array [N] or none, is added to f, as the logarithm of an exposure is.
"""

import jax
import jax.numpy as jnp
import numpy as np

from ..linalg import factorise


def latent(predictor, likelihood, X):
    """Means and variances of the latent functions, [2, N] or [2, C, N]."""
    return jnp.stack(predictor(X))


def latent_of_target(predictor, likelihood, X):
    """The same of the functions that describe the target: of a real one the first is moved by what near rows tell."""
    return jnp.stack(likelihood.latent(*predictor(X)))


def latent_of_warped(predictor, likelihood, X):
    """The same of a target with a warp, the first function in the units of the target before it."""
    return jnp.stack(likelihood.without_noise(*likelihood.latent(*predictor(X))))


def latent_mean(predictor, likelihood, X):
    """Means of the functions that describe the target, [N] or [C, N]."""
    return likelihood.latent(*predictor(X))[0]  # the variance, which is not returned, is not compiled


def latent_function(warped: bool, variances: bool):
    """`latent_of_warped` where the target has a warp; else `latent_of_target` with variances, `latent_mean` without."""
    return latent_of_warped if warped else latent_of_target if variances else latent_mean


def mean(predictor, likelihood, X, *shift):
    """E y, [N]; under a Gaussian likelihood no variance of f is compiled."""
    return likelihood.predict(*_shifted(predictor(X), shift))[0]


def moments(predictor, likelihood, X, *shift):
    """Mean and variance of y, [2, N]."""
    return jnp.stack(likelihood.predict(*_shifted(predictor(X), shift)))


def log_density(predictor, likelihood, X, y, *shift):
    """log p(yᵢ | xᵢ), [N]; of y [N, P], [P, N]."""
    return likelihood.log_density(*_shifted(predictor(X), shift), y.T)


def _shifted(f, shift):
    mean, variance = f
    return sum(shift, mean), variance


def log_probabilities(predictor, likelihood, X):
    """log P(y = k) of every class, [K, N]."""
    return likelihood.log_probabilities(*predictor(X))


def mean_of_paths(paths, likelihood, levels, X):
    """E[y | f] for drawn functions f, [S, N]."""
    return mean_given(likelihood, levels, paths(X))


def mean_given(likelihood, levels, f):
    """E[y | f] for functions f [*C, S, N]; of a target of `levels` [K], None for others, Σₖ levelₖ P(k | f)."""
    if levels is None:
        return likelihood.moments(f).mean
    numbers = jnp.arange(len(levels), dtype=f.dtype)
    p = jax.vmap(lambda k: jnp.exp(likelihood.log_prob(f, jnp.full(f.shape[-2:], k))))(numbers)
    return jnp.tensordot(jnp.asarray(levels, f.dtype), p, 1)


@jax.jit
def joint(predictor, likelihood, X):
    """Mean [N] and joint covariance [N, N] of what the likelihood describes as f + noise, f its first latent function
    without a constant mean; the noise is on the diagonal."""
    K = predictor.covariance(X)
    K = K if K.ndim == 2 else K[0]
    mean, variance = likelihood.normal(*predictor(X))
    return mean, jnp.fill_diagonal(K, variance, inplace=False)


@jax.jit
def joint_outputs(predictor, X):
    """Joint covariance of several outputs without noise, [P, N, P, N]."""
    return predictor.joint(X)


@jax.jit
def draw(predictor, X, noise):
    """Joint draws of the latent functions at the rows of X, [S, N] or [C, S, N], from standard normal noise of that
    shape.

    The root of the covariance is taken in units of the prior's standard deviations, with jitter in those: what is drawn
    at a row does not depend on the rows after it.
    """
    level = 1e-12 if X.dtype == jnp.float64 else 1e-6
    # A row of no variance, as `Linear` has at 0, is no reason to divide by it.
    scale = jnp.sqrt(jnp.maximum(predictor.prior(X), jnp.finfo(X.dtype).tiny))
    eye = level * jnp.eye(len(X), dtype=X.dtype)
    K = predictor.covariance(X) / scale[..., :, None] / scale[..., None, :] + eye
    root = scale[..., :, None] * jnp.vectorize(lambda K: factorise(K).L, signature="(n,n)->(n,n)")(K)
    return predictor(X)[0][..., None, :] + noise @ root.mT


def with_noise(likelihood, f, state):
    """Draws [..., S, N] of the target for drawn functions f: with normal noise of one variance, or of one for each
    output, w⁻¹(f + ε) under a warp. Raises ValueError for other likelihoods."""
    inner, warp = likelihood.warped or (likelihood, None)
    if inner.gaussian_noise is None:
        raise ValueError(f"noise=True is for normal noise of one variance, and the likelihood is {inner.name}")
    f = np.asarray(f, np.float64)
    std = np.sqrt(np.asarray(inner.gaussian_noise)).reshape((-1,) + (1,) * (f.ndim - 1))
    y = f + std * state.standard_normal(f.shape)
    return y if warp is None else np.asarray(warp.inverse(y), np.float64)
