"""What this machine's arithmetic takes, in JAX or in PyTorch: products, Cholesky factors, inverses of triangles.

    python benchmarks/rates.py jax          in our environment: XLA's own products, LAPACK's factors
    python benchmarks/rates.py torch        in GPyTorch's environment: MKL's

Medians of milliseconds, and the products' rate, in float64, at the sizes of the benchmark's steps.
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import median

SIZES = ((100, 256), (500, 1024), (1000, 2048))


def milliseconds(f: Callable[[], object], rounds: int = 15) -> float:
    """The median of so many runs, after one."""
    f()
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        f()
        taken.append(1e3 * (time.perf_counter() - start))
    return median(taken)


def with_jax() -> None:
    """XLA, as our code calls it."""
    import jax
    import numpy as np

    from pseudopoint.linalg import cholesky, inverse_of_chol
    from pseudopoint.reproduce.runner import computing

    with computing():
        for M, B in SIZES:
            rng = np.random.default_rng(0)
            A, C = jax.numpy.asarray(rng.normal(size=(M, M))), jax.numpy.asarray(rng.normal(size=(M, B)))
            P = A @ A.T + M * jax.numpy.eye(M)
            multiply, factor, invert = jax.jit(jax.numpy.matmul), jax.jit(cholesky), jax.jit(inverse_of_chol)
            calls = (partial(multiply, A, C), partial(factor, P), partial(invert, cholesky(P)))
            report(M, B, *(milliseconds(lambda call=call: jax.block_until_ready(call())) for call in calls))


def with_torch() -> None:
    """PyTorch on two threads."""
    import torch

    torch.set_num_threads(2)
    torch.set_default_dtype(torch.float64)
    for M, B in SIZES:
        A, C, eye = torch.randn(M, M), torch.randn(M, B), torch.eye(M)
        P = A @ A.T + M * eye
        L = torch.linalg.cholesky(P)
        invert = partial(torch.linalg.solve_triangular, L, eye, upper=False)
        calls = (partial(torch.matmul, A, C), partial(torch.linalg.cholesky, P), invert)
        report(M, B, *map(milliseconds, calls))


def report(M: int, B: int, product: float, factor: float, inverse: float) -> None:
    """One line."""
    rate = 2 * M * M * B / product / 1e6
    print(f"M = {M}, B = {B}: product {product:.3f} ms ({rate:.0f} GF/s), Cholesky {factor:.3f}, inverse {inverse:.3f}")


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in ("jax", "torch"):
        sys.exit(__doc__)
    (with_jax if sys.argv[1] == "jax" else with_torch)()
