"""Classification tables that are drawn by a formula, as many rows as the collections of the papers have."""

import numpy as np

ROWS = {"twonorm": 7400, "waveform": 5000, "waveform_noise": 5000}
DRAWN = tuple(ROWS)


def drawn(name: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """X [N, D] and codes y [N] of a table.

    twonorm: N(±a 1, I) in 20 dimensions, a = 2/√20 (Breiman 1996). waveform: mixtures u h + (1 − u) h′ + N(0, 1) of two
    of three triangles at 21 places (Breiman et al. 1984). waveform_noise: the same, and 19 more columns N(0, 1).
    """
    rng, N = np.random.default_rng([seed, sorted(ROWS).index(name)]), ROWS[name]
    if name == "twonorm":
        y = rng.integers(0, 2, N)
        return (1 - 2 * y[:, None]) * 2 / np.sqrt(20) + rng.standard_normal((N, 20)), y
    at = np.arange(1, 22)
    triangles = np.maximum(6 - np.abs(at - np.array([[11], [7], [15]])), 0)
    y, u = rng.integers(0, 3, N), rng.random((N, 1))
    first, second = triangles[[0, 0, 1]][y], triangles[[1, 2, 2]][y]
    X = u * first + (1 - u) * second + rng.standard_normal((N, 21))
    return np.hstack([X, rng.standard_normal((N, 19))]) if name == "waveform_noise" else X, y
