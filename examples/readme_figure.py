"""The picture in the README: python examples/readme_figure.py docs/fit.png."""

import sys

import numpy as np
from matplotlib.figure import Figure

from pseudopoint import GPRegressor

rng = np.random.default_rng(0)
X = rng.uniform(0, 10, (300, 1))
y = np.sin(X[:, 0]) + 0.2 * rng.standard_normal(300)
model = GPRegressor().fit(X, y)

grid = np.linspace(-1, 13, 400)[:, None]
mean, interval = model.predict(grid), model.predict_interval(grid, 0.9)
figure = Figure(figsize=(8, 3.2), layout="constrained")
axes = figure.add_subplot()
axes.fill_between(grid[:, 0], *interval.T, color="#2563a8", alpha=0.18, lw=0, label="90 % interval")
axes.plot(grid[:, 0], model.sample_y(grid, 3, random_state=1), color="#d9650b", lw=0.8, alpha=0.8)
axes.plot(grid[:, 0], mean, color="#2563a8", label="mean")
axes.plot(X[:, 0], y, ".", color="#1f2733", ms=2.5, label="data")
axes.plot([], [], color="#d9650b", lw=0.8, label="three functions drawn")
axes.set(xlabel="x", ylabel="y", xlim=(-1, 13))
axes.legend(loc="lower left", ncols=4, frameon=False, fontsize=8)
figure.savefig(sys.argv[1], dpi=130)
