"""Several outputs as rows (x, output) of one function, and where their mixing starts."""

import numpy as np
from jaxtyping import Bool, Float

CONSTANT = 1e-4  # scale of an output of one value, in units of that value: what is known of it needs no width
LEAST = 0.05  # variance of a latent function at the start, of outputs of variance 1


def moments_of_outputs(
    Y: Float[np.ndarray, "N P"], weight: Float[np.ndarray, " N"]
) -> tuple[Float[np.ndarray, " P"], Float[np.ndarray, " P"]]:
    """Weighted mean and standard deviation of the values of each output that are there (not NaN); of an output of one
    value `CONSTANT` times that value, because outputs share their noise as a part of this scale."""
    mass, values = weight[:, None] * ~np.isnan(Y), np.nan_to_num(Y)
    mass = mass / mass.sum(axis=0)
    mean = np.sum(mass * values, axis=0)
    scale = np.sqrt(np.sum(mass * (values - mean) ** 2, axis=0))
    constant = scale <= 1e-12 * np.abs(mean)
    return mean, np.where(constant, CONSTANT * np.where(mean != 0, np.abs(mean), 1.0), scale)


def stacked(
    X: Float[np.ndarray, "N D"], Y: Float[np.ndarray, "N P"], weight: Float[np.ndarray, " N"]
) -> tuple[Float[np.ndarray, "R D1"], Float[np.ndarray, " R"], Float[np.ndarray, " R"]]:
    """Rows (xₙ, p), targets and weights of the R values Y_np that are there, output by output."""
    index, rows = np.nonzero(~np.isnan(Y.T))
    return np.column_stack([X[rows], index]), Y[rows, index], weight[rows]


def mixing(Y: Float[np.ndarray, "N P"], K: int) -> Float[np.ndarray, "P K"]:
    """W of which WWᵀ is the correlation of the standardised outputs as far as K latent functions can have it: of rows
    where both of two outputs are there, by its K largest eigenvalues."""
    there: Bool[np.ndarray, "N P"] = ~np.isnan(Y)
    values, counts = np.nan_to_num(Y), there.T.astype(float) @ there
    R = values.T @ values / np.maximum(counts, 1)
    scale = np.sqrt(np.maximum(np.diag(R), np.finfo(float).tiny))
    s, Q = np.linalg.eigh(R / scale / scale[:, None])
    s, Q = s[::-1][:K], Q[:, ::-1][:, :K]
    return Q * np.sign(Q[np.argmax(np.abs(Q), axis=0), np.arange(K)]) * np.sqrt(np.maximum(s, LEAST))


def latent_points(Z: Float[np.ndarray, "M D"], P: int, K: int) -> Float[np.ndarray, "KM D1"]:
    """The points Z of each of K latent functions of P outputs: rows (z, P + k)."""
    index = np.repeat(np.arange(P, P + K), len(Z))
    return np.column_stack([np.tile(Z, (K, 1)), index])
