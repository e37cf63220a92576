"""What is measured: tables, starting points and lists of cases. Every library reads the same arrays from one file."""

import gzip
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
NAVAL = ROOT / "pseudopoint" / "datasets" / "naval.csv.gz"
LIBRARIES = ("ours", "gpflow", "gpytorch", "gpjax", "sklearn")


class Entry(NamedTuple):
    """One line of a table: a library, and which of its ways."""

    library: str
    variant: str

    @property
    def name(self) -> str:
        """As it is printed."""
        return f"{self.library} {self.variant}".strip()


class Case(NamedTuple):
    """One comparison: who takes part, what each of them is asked to prepare, and what the row is about.

    `check` names the entries whose values must agree to `tolerance` (relative) at the start; `loose` those that compute
    something a little else, and how much.
    """

    name: str
    kind: str
    entries: tuple[Entry, ...]
    options: dict[str, Any]
    facts: dict[str, Any]
    check: tuple[str, ...] = ()
    tolerance: float = 1e-6
    loose: dict[str, float] = {}


# GPyTorch takes log Φ(z) below z = −1 from a rational approximation, wrong by up to 1.9e-3. GPflow's robust-max
# squeezes its Φ into [1e-4, 1 − 1e-4]. Student-t's E log p is a closed form here; sums over 20 nodes are 7e-6 off it.
PROBIT, NODES = 3e-4, 1e-5
LOOSE = {
    "robustmax": {"gpflow": 1e-5},
    "bernoulli": {"gpytorch whitened": PROBIT, "gpytorch unwhitened": PROBIT},
    "studentt": dict.fromkeys(("gpflow", "gpytorch whitened", "gpytorch unwhitened", "gpjax", "gpjax dual"), NODES),
}


def read_table(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Inputs [N, D] and the last column, y [N], of a numeric CSV with a header."""
    with gzip.open(path, "rt") as file:
        table = np.loadtxt(file, delimiter=",", skiprows=1)
    return table[:, :-1], table[:, -1]


def naval(N: int) -> tuple[np.ndarray, np.ndarray]:
    """NAVAL as the steps see it: all 16 columns and the target standardised; two columns are constant, so zero."""
    X, y = read_table(NAVAL)
    rows = np.random.default_rng(0).permutation(len(y))[:N]
    X, y = X[rows], y[rows]
    scale = X.std(axis=0)
    constant = scale < 1e-9 * np.maximum(np.abs(X.mean(axis=0)), 1e-300)
    X = np.where(constant, 0.0, (X - X.mean(axis=0)) / np.where(constant, 1.0, scale))
    return np.ascontiguousarray(X), (y - y.mean()) / y.std()


def synthetic(N: int, D: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Normal inputs, a sum of four sine waves in random directions, noise of standard deviation 0.1."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, D))
    W = rng.normal(size=(D, 4)) / np.sqrt(D)
    y = np.sin(2 * X @ W).sum(axis=1) / np.sqrt(2) + 0.1 * rng.normal(size=N)
    return X, y


def stream(N: int, B: int, count: int) -> np.ndarray:
    """Rows of the first `count` batches, [count, B], as `pseudopoint.data.draw(N, B, 0, 0, count)` has them."""
    epochs = -(-count * B // N)
    rows = np.concatenate([np.random.default_rng([0, e]).permutation(N) for e in range(epochs)])
    return rows[: count * B].reshape(count, B)


def targets(y: np.ndarray, likelihood: str) -> np.ndarray:
    """y as a likelihood takes it: real, 0 or 1, or ten classes by deciles."""
    if likelihood in ("gaussian", "studentt"):
        return y
    if likelihood == "bernoulli":
        return (y > np.median(y)).astype(float)
    return np.searchsorted(np.quantile(y, np.linspace(0, 1, 11)[1:-1]), y).astype(float)


def rbf(X: np.ndarray, Z: np.ndarray, lengthscale: np.ndarray, variance: float) -> np.ndarray:
    """variance · exp(−½ Σ (x − z)²/ℓ²), for starting points."""
    X, Z = X / lengthscale, Z / lengthscale
    r2 = (X**2).sum(1)[:, None] + (Z**2).sum(1) - 2 * X @ Z.T
    return variance * np.exp(-0.5 * np.maximum(r2, 0))


def start(X: np.ndarray, M: int, jitter: float, latents: int = 1) -> dict[str, np.ndarray]:
    """Hyperparameters, Z (the first M rows) and q: m [C, M], root [C, M, M] of S = RRᵀ in v = L⁻¹u, and the same in u.

    q is no special one, so that equal bounds mean equal models.
    """
    rng, D = np.random.default_rng(1), X.shape[1]
    lengthscale, variance = np.full(D, np.sqrt(D)), 2.0
    Z = X[:M].copy()
    mean = 0.1 * rng.normal(size=(latents, M))
    root = np.tril(rng.normal(size=(latents, M, M)), -1) * (0.1 / np.sqrt(M)) + 0.5 * np.eye(M)
    L = np.linalg.cholesky(rbf(Z, Z, lengthscale, variance) + jitter * np.eye(M))
    return {
        "Z": Z, "lengthscale": lengthscale, "variance": np.array(variance), "noise": np.array(0.1),
        "scale": np.array(0.3), "degrees": np.array(4.0), "jitter": np.array(jitter),
        "mean": mean, "root": root, "mean_u": mean @ L.T, "root_u": L @ root,
    }  # fmt: skip


def write(path: Path, arrays: dict[str, Any], dtype: str) -> str:
    """Save for workers; real numbers in `dtype`."""
    arrays = {name: np.asarray(a) for name, a in arrays.items()}
    np.savez(path, **{k: a.astype(dtype) if a.dtype.kind == "f" else a for k, a in arrays.items()})
    return str(path)


SIZES = {(100, 256): 50, (500, 1024): 8, (1000, 2048): 2}  # (M, B): steps a turn
TINY = {(20, 64): 5}
OPTIMISERS = ("ngd+adam", "adam")
QUICK = {
    "gaussian": "ngd+adam",
    "bernoulli": "adam",
    "studentt": "ngd+adam",
    "robustmax": "ngd+adam",
    "softmax": "adam",
}
ONE, TEN = ("gaussian", "bernoulli", "studentt"), ("robustmax", "softmax")


def step_entries(likelihood: str, optimiser: str) -> tuple[Entry, ...]:
    """Who takes part: of ours the standard bound, which peers have, and where it differs the tight one."""
    ours = [Entry("ours", "")] + [Entry("ours", "tight")] * (likelihood == "gaussian")
    if likelihood in TEN:
        return (*ours, Entry("gpflow", "")) + ((Entry("gpytorch", "whitened"),) if likelihood == "softmax" else ())
    peers = [Entry("gpflow", ""), Entry("gpytorch", "whitened"), Entry("gpytorch", "unwhitened"), Entry("gpjax", "")]
    return (*ours, *peers) + ((Entry("gpjax", "dual"),) if optimiser == "ngd+adam" else ())


def step_cases(quick: bool) -> list[Case]:
    """One training step: sizes × likelihoods × optimisers; with ten latent functions, half as many steps a turn."""
    cases = []
    for (M, B), count in (TINY if quick else SIZES).items():
        for likelihood in ONE + TEN:
            for optimiser in (QUICK[likelihood],) if quick else OPTIMISERS:
                entries = step_entries(likelihood, optimiser)
                # Softmax is integrated by samples in peers, so their values are estimates.
                check = () if likelihood == "softmax" else tuple(e.name for e in entries if e.variant != "tight")
                # GPflow's natural gradient ends in NaN with robust-max at 0.02.
                gamma, n = (1e-3, count // 2) if likelihood in TEN else (0.02, count)
                options = {"likelihood": likelihood, "optimiser": optimiser, "steps": n, "gamma": gamma, "rate": 0.01}
                facts = {"M": M, "B": B, "D": 16, "latents": 10 if likelihood in TEN else 1}
                name = f"{likelihood} {optimiser} M={M} B={B}"
                cases.append(
                    Case(name, "steps", entries, options, facts | options, check, loose=LOOSE.get(likelihood, {}))
                )
    return cases


def collapsed_cases(quick: bool) -> list[Case]:
    """Value and gradient of the collapsed bound; a short one also 20 times without a pause, as a fit asks for it."""
    sizes = [(2000, 50, 1)] if quick else [(10_000, 100, 1), (10_000, 100, 20), (50_000, 500, 1), (250_000, 500, 1)]
    entries = (Entry("ours", ""), Entry("ours", "tight"), *(Entry(peer, "") for peer in LIBRARIES[1:4]))
    check = tuple(e.name for e in entries if e.variant != "tight")
    facts = lambda N, M, calls: {"N": N, "M": M, "calls": calls, "D": 16}
    name = lambda N, M, calls: f"collapsed N={N} M={M}" + (f", {calls} times" if calls > 1 else "")
    return [Case(name(*n), "collapsed", entries, {"calls": n[2]}, facts(*n), check) for n in sizes]


def predict_cases(quick: bool) -> list[Case]:
    """Mean and variance of new rows. One is asked for after a pause, and 200 times without one; 1,000 also 20 times."""
    M, counts = (50, ((1000, 1),)) if quick else (500, ((1, 1), (1, 200), (1000, 1), (1000, 20), (1_000_000, 1)))
    entries = (Entry("ours", ""), Entry("ours", "predictor"), *(Entry(peer, "") for peer in LIBRARIES[1:]))
    check = tuple(e.name for e in entries if e.library != "sklearn")
    facts = lambda rows, calls: {"rows": rows, "calls": calls, "M": M, "D": 16}
    name = lambda rows, calls: f"predict rows={rows}" + (f", {calls} times" if calls > 1 else "")
    return [Case(name(*n), "predict", entries, {"calls": n[1]}, facts(*n), check, 1e-5) for n in counts]
