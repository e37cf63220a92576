"""The pictures of docs/methods.md, drawn by the bounds, posteriors and optimisers that it derives."""

from functools import partial
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from pseudopoint.bounds import collapsed, marginal
from pseudopoint.data import dataset
from pseudopoint.gaussians import MeanChol, MeanPrecision, Natural
from pseudopoint.kernels import RBF
from pseudopoint.likelihoods import Gaussian
from pseudopoint.optimise.fullbatch import Gradient, NaturalDirection, Objective, line_search
from pseudopoint.optimise.named import in_coordinates, standard_elbo
from pseudopoint.params import cast, trainable
from pseudopoint.posteriors import Collapsed, Model, Orthogonal, Whitened
from pseudopoint.posteriors.orthogonal import OrthogonalBasis

FOLDER = Path(__file__).parent.parent / "docs" / "pictures"
BLUE, ORANGE, GREY, INK = "#2563a8", "#d9650b", "#9aa3af", "#1f2733"

rng = np.random.default_rng(0)
X = np.sort(rng.uniform(0, 10, 60))[:, None]
Y = np.sin(X[:, 0]) + 0.3 * rng.standard_normal(60)
KERNEL = RBF(1.0)


def axes_of(columns=1):
    """A figure with axes beside each other."""
    figure = Figure(figsize=(7, 2.8), layout="constrained")
    axes = np.ravel(figure.subplots(1, columns))
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
    return axes


def save(axes, name):
    """Writes their figure."""
    FOLDER.mkdir(exist_ok=True)
    axes[0].figure.savefig(FOLDER / f"{name}.png", dpi=90)


def spread(M):
    """M points, evenly over the rows."""
    return np.linspace(0.5, 9.5, M)[:, None]


@partial(jax.jit, static_argnums=1)
def four(noise, M):
    """Evidence, tight bound, VFE and the upper bound at a noise variance, with M points."""
    data, model = dataset(X, Y), Model(KERNEL, Gaussian(noise), Collapsed(jnp.asarray(spread(M))))
    bound = collapsed(model, data)
    return jnp.stack([marginal(model, data).value, bound.value, bound.standard, bound.upper()])


def basis_of(Z, O):
    """Features of Z, c(O, ·) and the residual given Z, as functions of rows."""
    q = MeanPrecision(np.zeros(len(Z)), np.eye(len(Z)))
    return OrthogonalBasis.of(Orthogonal(Z, O, q, np.zeros(len(O)), jitter=0.0), KERNEL)


def evidence():
    """a.1: the bounds as functions of the noise variance, and of the number of points."""
    left, right = axes = axes_of(2)
    names = ["log evidence", "tight bound", "VFE", "upper bound"]
    styles = [dict(color=INK), dict(color=BLUE), dict(color=ORANGE), dict(color=GREY, ls="--")]
    noises = np.geomspace(0.02, 1.0, 50)
    values = np.array(jax.vmap(lambda noise: four(noise, 7))(noises))
    for name, style, line in zip(names, styles, values.T, strict=True):
        left.semilogx(noises, line, label=name, **style)
    left.axvline(0.09, color=GREY, lw=0.6)
    left.set(xlabel="noise variance σ²; that of the data is 0.09", ylabel="nats", ylim=(-140, 0), title="M = 7")
    left.legend(frameon=False, fontsize=8)
    counts = range(5, 13)
    values = np.array([four(0.09, M) for M in counts])
    for style, line in zip(styles, values.T, strict=True):
        right.plot(counts, line, marker=".", **style)
    right.set(xlabel="pseudo-points M", ylim=(-140, 0), title="σ² = 0.09")
    save(axes, "evidence")


def shrinkage():
    """a.1: what the points leave open, and the factor of each row."""
    left, right = axes = axes_of(2)
    grid, Z = np.linspace(0, 10, 300)[:, None], spread(6)
    left.plot(grid, basis_of(Z, Z[:1] + 1.0)(grid)[2], color=BLUE)
    left.plot(Z, 0 * Z, "|", color=ORANGE, ms=12)
    left.set(xlabel="x", title="dᵢ, the variance that 6 points leave open")
    ratio = np.linspace(0, 5, 100)
    right.plot(ratio, 0.5 * ratio, color=ORANGE, label="VFE: ½ dᵢ/σ²")
    right.plot(ratio, 0.5 * np.log1p(ratio), color=BLUE, label="tight: ½ log(1 + dᵢ/σ²)")
    right.plot(ratio, 1 / (1 + ratio), color=GREY, label="v*ᵢ = 1/(1 + dᵢ/σ²)")
    right.set(xlabel="dᵢ/σ²", title="what a row costs, in nats")
    right.legend(frameon=False, fontsize=8)
    save(axes, "shrinkage")


def bases():
    """a.5 and c: covariances with pseudo-points, and those with further points less what the first explain."""
    left, right = axes = axes_of(2)
    grid, Z, O = np.linspace(0, 10, 300)[:, None], spread(4), np.linspace(2, 8, 3)[:, None]
    left.plot(grid, KERNEL(grid, Z), color=BLUE)
    left.plot(Z, 0 * Z, "|", color=BLUE, ms=12)
    left.set(xlabel="x", title="k(x, Z)")
    right.plot(grid, basis_of(Z, O)(grid)[1].T, color=ORANGE)
    right.plot(Z, 0 * Z, "|", color=BLUE, ms=12)
    right.plot(O, 0 * O, "|", color=ORANGE, ms=12)
    right.axhline(0, color=INK, lw=0.5)
    right.set(xlabel="x", title="c(x, O): zero at every point of Z", ylim=(-0.4, 1.05))
    save(axes, "bases")


def steps():
    """d.1: the bound as q alone moves along two directions, each step as long as is best."""
    (each,) = axes = axes_of()
    Z, data = spread(12), dataset(X, Y)
    q = MeanPrecision(np.zeros(len(Z)), np.eye(len(Z)))
    model = cast(Model(KERNEL, Gaussian(0.09), Whitened(Z, q)), "float64")
    best = float(collapsed(eqx.tree_at(lambda m: m.posterior, model, Collapsed(model.posterior.Z)), data).standard)
    first = float(standard_elbo(model, data))
    ways = {"natural gradient": NaturalDirection(), "gradient": Gradient()}
    for (name, way), color in zip(ways.items(), (BLUE, ORANGE), strict=True):
        coordinates = Natural if name == "natural gradient" else MeanChol
        only_q = trainable(
            in_coordinates(model, coordinates), lambda m: m.kernel, lambda m: m.likelihood, lambda m: m.posterior.Z
        )
        records = line_search(Objective(standard_elbo, only_q, data), way, max_iter=20).history
        gaps = [best - bound for bound in (first, *(float(record.bound) for record in records))]
        each.semilogy(range(len(gaps)), np.maximum(gaps, 1e-9), ".-", color=color, label=name)
    each.set(xlabel="step on all rows", ylabel="nats below the best q")
    each.legend(frameon=False)
    save(axes, "steps")


if __name__ == "__main__":
    with jax.enable_x64(True):
        for draw in (evidence, shrinkage, bases, steps):
            draw()
