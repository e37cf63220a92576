"""scikit-learn: no sparse GP, so an exact one on as many rows as others have inducing points."""

import numpy as np
import serve
import sklearn
from serve import Task
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

CHUNK = 10_000


def predict(p, variant):
    """An exact GP of the M points: as many numbers a row as a sparse one of M points; chunks of 10,000 rows."""
    kernel = ConstantKernel(float(p["variance"])) * RBF(p["lengthscale"])
    M = len(p["Z"])
    model = GaussianProcessRegressor(kernel, alpha=float(p["noise"]), optimizer=None).fit(p["X"][:M], p["y"][:M])
    new = p["new"]

    def turn():
        parts = [model.predict(new[i : i + CHUNK], return_std=True) for i in range(0, len(new), CHUNK)]
        [np.concatenate(column) for column in zip(*parts, strict=True)]

    return Task(turn, None, "GaussianProcessRegressor of M rows")


def cold(p, variant):
    """GaussianProcessRegressor with a lengthscale a column, and one row predicted."""
    out = [None, None]

    def turn():
        mean, scale = p["X"].mean(0), np.maximum(p["X"].std(0), 1e-12)
        D = p["X"].shape[1]
        kernel = ConstantKernel() * Matern(np.full(D, np.sqrt(D)), nu=2.5) + WhiteKernel(0.1)
        out[0] = GaussianProcessRegressor(kernel, normalize_y=True).fit((p["X"] - mean) / scale, p["y"])
        out[1] = lambda X: out[0].predict((X - mean) / scale, return_std=True)
        out[1](p["X_test"][:1])

    def density():
        mean, std = out[1](p["X_test"])
        return serve.log_normal(p["y_test"], mean, std**2)

    return Task(turn, density, "GaussianProcessRegressor, ARD")


if __name__ == "__main__":
    serve.serve({"predict": predict, "cold": cold}, {"scikit-learn": sklearn.__version__, "numpy": np.__version__})
