"""Tables without noise, which K + σ²I hardly holds in float64: against the same formulas in 40 decimal digits."""

from decimal import Decimal, localcontext

import jax
import numpy as np
from jax.scipy.linalg import solve_triangular

from pseudopoint import GPRegressor
from pseudopoint.bounds import marginal
from pseudopoint.data import dataset
from pseudopoint.datasets import load
from pseudopoint.kernels import Matern52
from pseudopoint.likelihoods import Gaussian
from pseudopoint.linalg import cholesky, inverse_of_chol, refined_inverse
from pseudopoint.params import cast
from pseudopoint.posteriors import Model

exactly = np.vectorize(
    Decimal, otypes=[object]
)  # NumPy adds, multiplies and takes roots of these; no machine lacks them


def naval(N, seed):
    """N rows of NAVAL in the order of their columns, as a fit has them, and 100 others; standardised by the first."""
    table = load("naval")
    rows = np.random.default_rng(seed).permutation(len(table.y))[: N + 100]
    X, y = (np.asarray(a, float)[rows] for a in (table.X, table.y))
    X = X[:, X.std(0) > 1e-9]
    X, y = (X - X[:N].mean(0)) / X[:N].std(0), (y - y[:N].mean()) / y[:N].std()
    order = np.lexsort(X[:N].T[::-1])
    return X[:N][order], y[:N][order], X[N:], y[N:]


def matern(lengthscale, variance, X, Z):
    """Kobe (2.4), ν = 5/2."""
    X, Z = (exactly(points) / exactly(lengthscale) for points in (X, Z))
    s = np.sqrt(5 * np.sum((X[:, None] - Z[None]) ** 2, axis=-1))
    return Decimal(variance) * (1 + s + s * s / 3) * np.exp(-s)


def solve_lower(L, B):
    X = B.copy()
    for i in range(len(L)):
        X[i] = (X[i] - L[i, :i] @ X[:i]) / L[i, i]
    return X


def cholesky_exactly(K):
    L = K.copy()
    for j in range(len(L)):
        L[j, j] = (L[j, j] - L[j, :j] @ L[j, :j]).sqrt()
        L[j + 1 :, j] = (L[j + 1 :, j] - L[j + 1 :, :j] @ L[j, :j]) / L[j, j]
    return L  # below the diagonal


# As an exact fit of 900 rows leaves them: a variance of 100, and noise of 1e-10 of it.
LENGTHSCALE = np.array([5.7, 7.8, 0.54, 0.96, 1.57, 156, 156, 6.7, 3.4, 477, 3.1, 7817, 3.9, 415])
VARIANCE, NOISE = 102.0, 1.02e-8


def test_the_exact_posterior_of_a_table_without_noise_is_that_of_more_digits():
    X, y, T, _ = naval(160, 0)
    T = T[:40]
    with jax.enable_x64(True):
        model = cast(Model(Matern52(LENGTHSCALE, VARIANCE), Gaussian(NOISE)), "float64")
        solution = marginal(model, dataset(X, y, dtype="float64"))
        value = solution.value
        mean, variance = (np.asarray(x) for x in solution.predictor()(jax.numpy.asarray(T)))
    # log p(y) as Izmailov (4); the posterior by Rasmussen and Williams (2.25) and (2.26)
    with localcontext(prec=40):
        L = cholesky_exactly(matern(LENGTHSCALE, VARIANCE, X, X) + exactly(NOISE * np.eye(len(X))))
        A, b = solve_lower(L, matern(LENGTHSCALE, VARIANCE, X, T)), solve_lower(L, exactly(y)[:, None])
        left = Decimal(VARIANCE) - np.sum(A**2, axis=0) + Decimal(NOISE)
        fit, exact_mean = float(np.sum(b**2)), (A.T @ b)[:, 0].astype(float)
    evidence = -0.5 * fit - np.sum(np.log(np.diag(L).astype(float))) - 0.5 * len(X) * np.log(2 * np.pi)
    deviation = np.sqrt(left.astype(float))
    # Kernels are right to 1e-14 of their variance, of which the predictions see some hundred times that.
    np.testing.assert_allclose(np.sqrt(variance + NOISE), deviation, rtol=0.02)
    np.testing.assert_allclose(mean, exact_mean, atol=0.1 * deviation.min())
    np.testing.assert_allclose(float(value), evidence, rtol=1e-5)


def test_a_sharpened_inverse_whitens_as_a_triangular_solve_does():
    X, _, T, _ = naval(400, 0)
    with jax.enable_x64(True):
        kernel = cast(Matern52(LENGTHSCALE, VARIANCE), "float64")
        X, T = jax.numpy.asarray(X), jax.numpy.asarray(T)
        L, k = cholesky(kernel(X, X) + NOISE * np.eye(len(X))), kernel(X, T)
        rough = inverse_of_chol(L)
        solved = solve_triangular(L, k, lower=True)
        off = [float(np.abs(W @ k - solved).max()) for W in (rough, refined_inverse(L, rough))]
    assert off[1] < 1e-3 * off[0]
    assert off[1] < 1e-7


def test_a_default_fit_of_a_table_without_noise_knows_how_far_it_is_off():
    X, y, T, t = naval(400, 1)
    model = GPRegressor(max_iter=60, effort="fast").fit(X, y)
    assert model.method_ == "exact"
    mean, std = model.predict(T, return_std=True)
    z = np.abs(t - mean) / std
    assert np.sqrt(np.mean((t - mean) ** 2)) < 0.05
    assert np.quantile(z, 0.9) < 3  # it was 26, with the kernels of one OpenBLAS
