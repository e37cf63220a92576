"""Sums over the rows of a table, in chunks: all that a collapsed bound needs of the data."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float

from ..data import Dataset
from ..devices import Devices, over_devices
from ..linalg import Scalar, gram, lower_product, lower_transposed_product, outer, through_whitening, tril_product


class Statistics(NamedTuple):
    """Sums over rows with precisions λᵢ = wᵢ/(σ² + noiseᵢ), features aᵢ and residuals dᵢ."""

    H: Float[Array, "K K"]  # Σ λ a aᵀ
    b: Float[Array, "K *C"]  # Σ λ y a, of a target [N, C] for each column
    yy: Scalar  # Σ λ y², over all columns
    log_noise: Scalar  # Σ w log 2π(σ² + noise)
    trace: Scalar  # Σ λ d
    log_trace: Scalar  # Σ log(1 + λ d)
    residual: Scalar  # Σ d over rows with w > 0


class Sums(NamedTuple):
    """The part of `Statistics` that takes N K² operations, and the residual d of every row."""

    H: Float[Array, "K K"]
    b: Float[Array, "K *C"]
    trace: Scalar
    d: Float[Array, " N"]


Summing = Callable[[Float[Array, "N D"], Float[Array, " N"], Float[Array, "N *C"]], Sums]


def statistics(sums: Summing, data: Dataset, noise: Float[Array, " N"], extra: float | Scalar = 0.0) -> Statistics:
    """`Statistics` of all rows, which devices share. `noise` is σ² + noiseᵢ, to which `extra` is added in the
    precisions; `sums` computes `Sums` from (X, λ, y)."""

    def of(data: Dataset, devices: Devices) -> Statistics:
        precision = data.weight / (data.noise + data.weight * extra)
        H, b, trace, d = sums(data.X, precision, data.y)
        of_share = Statistics(
            H=H,
            b=b,
            yy=jnp.sum(precision * data.y.T**2),
            log_noise=jnp.sum(data.weight * jnp.log(2 * jnp.pi * data.noise)),
            trace=trace,
            log_trace=jnp.sum(jnp.log1p(precision * d)),
            residual=jnp.sum(jnp.where(data.weight > 0, d, 0)),
        )
        return devices.sum(of_share)

    return over_devices(of, replace(data, noise=noise))


def feature_sums(basis: Callable, chunk: int | None, X, precision, y) -> Sums:
    """`Sums` of any `basis`, a function from X to features A and residuals d."""
    K = jax.eval_shape(basis, X[:1])[0].shape[0]
    size = chunk_size(len(X), K, chunk)

    def of(X, precision, y):
        A, d = basis(X)
        return (gram(A, precision), A @ (precision * y.T).T, jnp.sum(precision * d)), d

    # The features of a chunk are computed again for the gradient instead of being kept, which limits the memory.
    part = of if size == len(X) else jax.checkpoint(of)

    def add(sums, rows):
        more, d = part(*rows)
        return jax.tree.map(jnp.add, sums, more), d

    (H, b, trace), d = _scan(add, _nothing(K, X.dtype, y), _chunks(size, X, precision, y))
    return Sums(H, b, trace, d.ravel()[: len(X)])


def whitened_sums(kernel, Kuu, Z, chunk: int | None, X, precision, y) -> Sums:
    """`Sums` of the features A = L⁻¹K_uf and residuals dᵢ = kᵢᵢ − ‖aᵢ‖² ≥ 0, like `feature_sums`, with fewer matrix
    products: five forward and back, or three if no gradient in d is needed, as for the standard bound. In chunks one
    more computes A again. `feature_sums` takes five, or six. A chunk whose rows all have λ = 0 takes none, forward or
    back; the gradient in such a λ is returned as 0, which is not its value.
    """
    return _whitened_sums(chunk_size(len(X), len(Z), chunk), kernel, Kuu.K, Kuu.inverse, Z, X, precision, y)


def chunk_size(N: int, K: int, chunk: int | None = None) -> int:
    """Rows of each chunk. By default a small table is one chunk, whose A is kept for the gradient.

    Other chunks have about 2¹⁷ numbers in a matrix, which fit into a processor's cache, and at least three rows per
    feature, because each chunk reads and writes sums of K² numbers. Larger chunks are not faster, and a subset of the
    rows costs whole chunks.
    """
    small = N * K <= 2**19 and N <= 2**13  # a sum down longer columns takes XLA five times as long (on CPUs)
    size = chunk or (N if small else max(2**17 // max(K, 64), min(3 * K, 1024)))
    return -(-N // -(-N // size))


def _nothing(K, dtype, y):
    return jnp.zeros((K, K), dtype), jnp.zeros((K, *y.shape[1:]), dtype), jnp.zeros((), dtype)


def _chunks(size, X, *columns):
    """Stacks of chunks. The last one is filled up with copies of the first row of X and zeros in the columns."""
    more = -len(X) % size
    X = jnp.concatenate([X, jnp.broadcast_to(X[:1], (more, X.shape[1]))])
    return tuple(x.reshape(-1, size, *x.shape[1:]) for x in (X, *(_longer(c, more) for c in columns)))


def _longer(column, more):
    return jnp.pad(column, [(0, more)] + [(0, 0)] * (column.ndim - 1))


def _scan(add, nothing, chunks, counts=None):
    """`lax.scan`, without a loop for a single chunk: XLA would not merge the kernel matrices of two loops. Chunks that
    do not count (`counts`) are not computed: they add nothing, and the results of their rows are zeros."""
    if len(jax.tree.leaves(chunks)[0]) == 1:
        sums, out = add(nothing, jax.tree.map(lambda x: x[0], chunks))
        return sums, jax.tree.map(lambda x: x[None], out)
    if counts is None:
        return lax.scan(add, nothing, chunks)

    def add_if(sums, at):
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(add, sums, at[1])[1])
        return lax.cond(at[0], add, lambda sums, rows: (sums, zeros), sums, at[1])

    return lax.scan(add_if, nothing, (counts, chunks))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _whitened_sums(size, kernel, K, inverse, Z, X, precision, y):
    return _run(size, kernel, inverse, Z, X, precision, y)[0]


def _run(size, kernel, inverse, Z, X, precision, y):
    """The sums, and A [1, M, N] for the gradient if all rows are one chunk."""
    one = size == len(X)

    def add(sums, rows):
        X, precision, y = rows
        A = lower_product(inverse, kernel(Z, X))
        d = jnp.maximum(kernel.diag(X) - jnp.sum(A**2, axis=0), 0)
        more = gram(A, precision), A @ (precision * y.T).T, jnp.sum(precision * d)
        return jax.tree.map(jnp.add, sums, more), (d, A if one else None)

    chunks = _chunks(size, X, precision, y)
    (H, b, trace), (d, A) = _scan(add, _nothing(len(Z), Z.dtype, y), chunks, jnp.any(chunks[1] > 0, axis=1))
    return Sums(H, b, trace, d.ravel()[: len(X)]), A


def _whitened_fwd(size, *arguments):
    kernel, _, inverse, Z, X, precision, y = jax.tree.map(lambda x: x.value, arguments)
    sums, A = _run(size, kernel, inverse, Z, X, precision, y)
    return sums, (kernel, inverse, Z, X, precision, y, sums.H, A)


def _whitened_bwd(size, residuals, cotangents):
    # With the gradients g (symmetric), h, t and s in H, b, Σλd and d, rᵢ = yᵢ − hᵀaᵢ and R = 2g − 2tI + hhᵀ:
    #   Ā = RAΛ + h(Λr)ᵀ − 2A diag(s),   K̄_uf = L⁻ᵀĀ,   k̄ᵢᵢ = tλᵢ + sᵢ,   ĀAᵀ for K_uu,
    #   λ̄ᵢ = aᵢᵀgaᵢ + yᵢhᵀaᵢ + tdᵢ = ½aᵢᵀRaᵢ + (yᵢ − ½hᵀaᵢ)hᵀaᵢ + tkᵢᵢ.
    # If s = 0, as for the standard bound, K̄_uf = EΛ + L⁻ᵀh(Λr)ᵀ with E = L⁻ᵀR A, aᵢᵀRaᵢ = kᵢᵀeᵢ and
    # ĀAᵀ = RH + h(AΛr)ᵀ take one product. In a bound h is the posterior's mean and 2g = −B⁻¹ − hhᵀ, so that L⁻ᵀ
    # multiplies the residuals r, not the larger terms whose difference they are.
    kernel, inverse, Z, X, precision, y, H, kept = residuals
    g, h, t, s = (jnp.zeros(c.shape, Z.dtype) if isinstance(c, SymbolicZero) else c for c in cotangents)
    direct = isinstance(cotangents[3], SymbolicZero)
    R = g + g.T - 2 * t * jnp.eye(len(Z), dtype=Z.dtype) + outer(h, h)
    T, whitened_h = lower_transposed_product(inverse, R), inverse.T @ h

    def add(sums, rows):
        (X, precision, y, s), A = rows
        (Kuf, k), pull = jax.vjp(lambda kernel, Z, X: (kernel(Z, X), kernel.diag(X)), kernel, Z, X)
        A = lower_product(inverse, Kuf) if A is None else A
        along = h.T @ A
        off = (precision * (y.T - along)).T
        if direct:
            E = T @ A
            slope, own, other = E * precision + outer(whitened_h, off), Kuf * E, A @ off
        else:
            E = R @ A
            W = E * precision + outer(h, off) - 2 * s * A
            slope, own, other = lower_transposed_product(inverse, W), A * E, tril_product(W, A)
        of_kernel, of_Z, of_X = pull((slope, t * precision + s))
        of_y = (y.T - 0.5 * along) * along
        of_precision = 0.5 * jnp.sum(own, axis=0) + (of_y if y.ndim == 1 else jnp.sum(of_y, axis=0)) + t * k
        return jax.tree.map(jnp.add, sums, (other, of_kernel, of_Z)), (of_X, of_precision, (precision * along).T)

    nothing = jax.tree.map(jnp.zeros_like, (h if direct else H, kernel, Z))
    chunks = _chunks(size, X, precision, y, s)
    (other, of_kernel, of_Z), slopes = _scan(add, nothing, (chunks, kept), jnp.any(chunks[1] > 0, axis=1))
    of_X, *of_columns = (x.reshape(-1, *x.shape[2:])[: len(X)] for x in slopes)
    K_bar = through_whitening(inverse, tril_product(R, H) + outer(h, other) if direct else other)
    return of_kernel, K_bar, None, of_Z, of_X, *of_columns


_whitened_sums.defvjp(_whitened_fwd, _whitened_bwd, symbolic_zeros=True)
