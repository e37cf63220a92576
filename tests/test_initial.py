"""Where hyperparameters start."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pseudopoint.starts.hyperparameters import KERNELS, named_kernel, robust, ulapane


def ulapane_as_written(X, y):
    """(ℓ_SE, σ_SE) word by word as in Kobe 4.1.3, with its sums, counts and sets S_j, by loops over i and j."""
    N, D = X.shape
    d_x, d_y = [], []
    for j in range(D):
        S_j = sorted(zip(X[:, j], y, strict=True), key=lambda pair: pair[0])
        x_sorted, y_sorted = [x for x, _ in S_j], [t for _, t in S_j]
        k_x = sum(x_sorted[i] != x_sorted[i + 1] for i in range(N - 1))
        k_y = sum(y_sorted[i] != y_sorted[i + 1] for i in range(N - 1))
        d_x.append(sum(abs(x_sorted[i] - x_sorted[i + 1]) for i in range(N - 1)) / k_x)
        d_y.append(sum(abs(y_sorted[i] - y_sorted[i + 1]) for i in range(N - 1)) / k_y)
    return sum(d_x) / D, sum(d_y) / D


@pytest.mark.parametrize("D", [1, 3])
@pytest.mark.parametrize("repeats", [False, True])
def test_ulapane_is_the_scheme_as_written(D, repeats):
    rng = np.random.default_rng(D)
    X, y = rng.normal(size=(40, D)), rng.normal(size=40)
    if repeats:  # equal neighbours count in no denominator
        X, y = np.round(X), np.round(2 * y)
    lengthscale, sigma = ulapane_as_written(X, y)
    # The kernel of the thesis is σ_f² exp(−r²/2) (2.3): σ_SE is a standard deviation, and our variance its square.
    np.testing.assert_allclose(ulapane(X, y), (lengthscale, sigma**2), rtol=1e-12)


def test_ulapane_of_an_even_grid_and_a_straight_line():
    x = np.random.default_rng(0).permutation(11.0 * np.arange(20))
    np.testing.assert_allclose(ulapane(x[:, None], 0.5 * x), (11.0, 5.5**2), rtol=1e-12)


@pytest.mark.parametrize(
    ("X", "y"),
    [
        (np.arange(5.0)[:, None], np.ones(5)),  # σ_SE = 0: the case that the scheme wants handled
        (np.ones((5, 2)), np.arange(5.0)),
        (np.ones((1, 1)), np.ones(1)),
    ],
)
def test_ulapane_refuses_data_without_steps_and_says_what_to_do(X, y):
    with pytest.raises(ValueError, match="inputs and targets that vary; use initial='robust' or more rows"):
        ulapane(X, y)


def test_the_robust_start_of_standardised_columns_is_the_root_of_their_number():
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(50, 9)), rng.normal(size=50)
    X, y = (X - X.mean(axis=0)) / X.std(axis=0), (y - y.mean()) / y.std()
    np.testing.assert_allclose(robust(X, y), (3.0, 1.0), rtol=1e-12)
    np.testing.assert_allclose(robust(10 * X, 0.1 * y), (30.0, 0.01), rtol=1e-12)


def test_the_robust_start_is_positive_whatever_the_data():
    assert robust(np.ones((4, 2)), np.zeros(4)) == (np.sqrt(2), 1.0)


@pytest.mark.parametrize("name", KERNELS)
def test_every_name_is_a_kernel_with_a_number_for_each_column_and_the_variance_asked_for(name):
    kernel = named_kernel(name, 0.7, 2.5, 3)
    nodes, weights = np.polynomial.hermite_e.hermegauss(24)  # the mean over standard normal rows
    X = np.stack(np.meshgrid(nodes, nodes, nodes), axis=-1).reshape(-1, 3)
    share = np.einsum("i,j,k->ijk", weights, weights, weights).reshape(-1) / (2 * np.pi) ** 1.5
    sizes = {np.size(leaf) for leaf in jax.tree.leaves(kernel)}
    assert 3 in sizes
    expected = 2.5 if name != "linear" else 5.0  # slopes and level share nothing: 2.5 each
    np.testing.assert_allclose(share @ np.asarray(kernel.diag(jnp.asarray(X))), expected, rtol=1e-6)


def test_an_unknown_name_is_an_error_with_the_known_ones():
    with pytest.raises(ValueError, match="'se' is unknown: use one of matern52, .*rbf, .*linear, or a kernel object"):
        named_kernel("se", 1.0, 1.0, 2)
