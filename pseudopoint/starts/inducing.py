"""Where pseudo-points start.

k-means ignores the kernel, greedy conditional variance chases outliers when M is small, random points waste some;
pivoted Cholesky with random pivots followed by a few Lloyd steps is best or close to it everywhere (methods e). Up to
5,000 rows `auto` tries k-means, this one and greedy variance, and keeps the one whose short fit has the highest bound;
beyond, it takes k-means alone.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from ..compilation import bucket, program
from ..data import Dataset, near_rows
from ..kernels import AbstractKernel, by_equality
from ..names import PLACEMENTS

Points = Float[np.ndarray, "M D"]
Inputs = Float[np.ndarray, "N D"]


def distinct(X: np.ndarray) -> np.ndarray:
    """The distinct rows of X, in its order: two pseudo-points in one place are one point and a singular matrix."""
    return X[np.sort(np.unique(X, axis=0, return_index=True)[1])]


def random(X: Inputs, M: int, seed: int) -> Points:
    """M distinct rows of X at random, [min(M, distinct rows), D]."""
    X = distinct(X)
    return X[np.random.default_rng(seed).permutation(len(X))[:M]]


def kmeans(X: Inputs, M: int, seed: int, weight: np.ndarray | None = None) -> Points:
    """Centres of M clusters by scikit-learn's k-means (k-means++ start, one run), all columns counting alike."""
    return _lloyd(X, "k-means++", M, 300, seed, weight)


def _lloyd(X, init, M, steps, seed, weight=None):
    import warnings

    from sklearn.cluster import KMeans  # here, for its import takes longer than all of ours
    from sklearn.exceptions import ConvergenceWarning

    if weight is not None:  # rows of nearly no weight tell nothing, and no mean can be made of the smallest numbers
        told = weight > np.finfo(np.float64).eps * np.max(weight)
        X, weight = X[told], weight[told] / np.max(weight)
    if len(distinct(X)) <= M:
        return distinct(X)
    # Columns in their own units (under a kernel object): by powers of two, so that standardised ones stay as they are.
    spread = X.std(axis=0)
    unit = 2.0 ** np.round(np.log2(np.where(spread > 0, spread, 1.0)))
    init = init if isinstance(init, str) else init / unit
    clusters = KMeans(M, init=init, n_init=1, max_iter=steps, random_state=seed)  # pyright: ignore[reportArgumentType]
    with warnings.catch_warnings():
        # Few steps are meant to stop early; and rows of no weight, or nearly in one place, make fewer clusters than M.
        warnings.simplefilter("ignore", ConvergenceWarning)
        centres = clusters.fit(X / unit, sample_weight=weight).cluster_centers_ * unit
    few = distinct(centres)
    return few if len(few) < len(centres) else centres


def greedy_variance(kernel: AbstractKernel, X: Inputs, M: int) -> Points:
    """Rows of greatest conditional variance, one after another: max-pivoted Cholesky (Burt et al. 2020)."""
    return X[_pivots(kernel, X, M, None)]


def rpcholesky(kernel: AbstractKernel, X: Inputs, M: int, seed: int, lloyd_steps: int = 5) -> Points:
    """Rows drawn in proportion to their conditional variance (Chen et al. 2022), then `lloyd_steps` steps of
    k-means."""
    Z = X[_pivots(kernel, X, M, seed)]
    if lloyd_steps == 0 or len(Z) < M:
        return Z
    return _lloyd(X, Z, M, lloyd_steps, seed)


def added(kernel: AbstractKernel, Z: Points, X: Inputs, M: int, seed: int | None = None) -> Float[np.ndarray, "K D"]:
    """Z and at most M − |Z| rows of X more: each the one whose variance those before explain least or, with a `seed`,
    drawn in proportion to that variance."""
    both = np.concatenate([Z, X])
    rows = _pivots(kernel, both, M, seed, len(Z))
    return np.concatenate([Z, both[rows[rows >= len(Z)]]])


def _pivots(kernel, X, M, seed, given=0):
    """M rows of X, of which the first `given` ones are taken first."""
    draw, key = np.asarray(seed is not None), jax.random.key(0 if seed is None else seed)
    choose, N = program(_pivoted_cholesky, "brief", (3,)), bucket(len(X))
    longer, counts = np.concatenate([X, np.repeat(X[:1], N - len(X), axis=0)]), np.arange(N) < len(X)
    at = counts, min(M, len(X)), draw, key, np.asarray(given)
    rows, variances, scale = choose(kernel, jax.device_put(longer), *at)
    # A pivot that the others explain adds a duplicate: stop where 1e-9 of the variance is left (methods f.6).
    good = (np.asarray(variances) > 1e-9 * float(scale)) | (np.arange(len(variances)) < given)
    return np.asarray(rows)[: max(1, int(np.argmin(good)) if not good.all() else len(good))]


def _pivoted_cholesky(kernel, X: Float[Array, "N D"], counts: Bool[Array, " N"], M: int, draw, key, given):
    """K ≈ FᵀF by rows i₁, i₂, …: F_j = (K_i − F_:iᵀF)/√d_i, d ← d − F_j². Time N M², memory N M. Rows that do not count
    are never taken; the first `given` are taken first. One program, whether rows are drawn or chosen."""
    d0 = jnp.where(counts, kernel.diag(X), 0)

    def step(j, carry):
        F, d, rows, variances = carry
        weighted = lambda: jax.random.categorical(jax.random.fold_in(key, j), jnp.log(d))
        i = jnp.where(j < given, j, lax.cond(draw, weighted, lambda: jnp.argmax(d)))
        f = (kernel(lax.dynamic_slice_in_dim(X, i, 1), X)[0] - F[:, i] @ F) / jnp.sqrt(jnp.maximum(d[i], 1e-30))
        f = jnp.where(d[i] > 0, f, 0)
        left = jnp.maximum(d - f**2, 0).at[i].set(0)
        return F.at[j].set(f), left, rows.at[j].set(i), variances.at[j].set(d[i])

    empty = (jnp.zeros((M, X.shape[0]), X.dtype), d0, jnp.zeros(M, int), jnp.zeros(M, X.dtype))
    _, _, rows, variances = lax.fori_loop(0, M, step, empty)
    return rows, variances, jnp.sum(d0) / jnp.sum(counts)


RACE_ROWS = 5000  # up to as many, starts are tried against each other


def candidates(method: str | np.ndarray, kernel: AbstractKernel, data: Dataset, M: int, seed: int) -> dict[str, Points]:
    """Starts of M pseudo-points by the name of the method, from at most max(10⁴, 20 M) rows; fewer where rows repeat.

    One for a named method or for points given as an array; three for "auto", to be tried against each other, k-means
    alone beyond `RACE_ROWS`.
    """
    if not isinstance(method, str):
        return {"hand": distinct(np.asarray(method))}
    rows = data.sample(max(10_000, 20 * M), seed)
    # A row far from all others would have a point for itself, and its square would hide all differences of the others.
    near = near_rows(np.asarray(rows.X))
    X = np.asarray(rows.X)[near]
    makers = {
        "kmeans": lambda: kmeans(X, M, seed, np.asarray(rows.weight)[near]),
        "rpcholesky": lambda: rpcholesky(kernel, X, M, seed),
        "greedy": lambda: greedy_variance(kernel, X, M),
        "random": lambda: random(X, M, seed),
    }
    auto = ("kmeans", "rpcholesky", "greedy")[: 3 if len(data) <= RACE_ROWS else 1]
    names = auto if method == "auto" else (method,)
    if unknown := set(names) - set(makers):
        raise ValueError(f"inducing start {unknown.pop()!r} is unknown: use one of {', '.join(PLACEMENTS)}")
    made = {name: makers[name]() for name in names}
    return {name: nearest_rows(X, Z) for name, Z in made.items()} if by_equality(kernel) else made


def nearest_rows(X: Inputs, Z: Points) -> Points:
    """The rows of X that are nearest to the points, which a kernel of codes has to know again."""
    from scipy.spatial import KDTree

    return distinct(X[KDTree(X).query(Z)[1]])
