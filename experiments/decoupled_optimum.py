"""Natural gradients against Adam and the closed-form optimum on kin40k, all but q fixed (figure 2a).

Full batches of 36,000 rows, Gaussian likelihood, |γ| = |β| = 500. `optimum` is the standard bound at the best q in
closed form; a row holds nats below it after some steps (`gap`). All families but "coupled" hold the same posteriors
(|α| = 1000, α = β ∪ γ, for the decoupled one), so theirs is one optimum, found in two ways. With constant
hyperparameters a Gaussian likelihood sees rows through Σ λφφᵀ and Σ λyφ alone, so steps are made from these sums;
`difference` is that of the bound computed so from `pseudopoint.bounds.elbo`, or, for (16a), (17) and Adam for a, of
three steps from those of the library's stepper on `check_rows` rows; relative, the worst.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from pseudopoint.bounds import collapsed, collapsed_decoupled, collapsed_orthogonal
from pseudopoint.data import Dataset, chunked
from pseudopoint.gaussians import MeanCovariance
from pseudopoint.kernels import Matern52
from pseudopoint.likelihoods import Gaussian
from pseudopoint.linalg import gram, invert
from pseudopoint.posteriors import Collapsed, CollapsedDecoupled, Model, Orthogonal
from pseudopoint.starts.inducing import kmeans

from . import _decoupled as shared
from ._decoupled import ADAM, NATURAL, Basis
from ._rows import marks, number
from .settings import head, training_part

SOURCE = "Salimbeni, Cheng, Boots and Deisenroth 2018, figure 2a"
PUBLISHED = (
    "With inducing points and hyperparameters fixed, natural gradient methods are much faster to converge than "
    "ordinary gradients.",
    "DECOUPLED fails to converge to the optimum after 20,000 iterations.",
)
CUT = {
    "rates": "The paper prints none: two of decoupled, falling to 0.",
    "other_rates": "One, falling to 0, of the other rules that use Adam: no bracket, so that the first finding cannot "
    "be decided by the stored run.",
    "": "The paper's figure shows test RMSE; ours are gaps of the bound to its optimum. HYBRID is the form (11), where "
    "the paper's experiments have the original one. kin40k in place of 3droad, which is not at hand whole. The paper "
    "prints no hyperparameters: ours are those of 15 iterations of L-BFGS-B on the collapsed bound with M = 500. "
    "'orthogonal, joint' is ours and not judged. HYBRID, ORTH and COUPLED by Adam, and DECOUPLED at the rate 0.01, "
    "have no rows yet, 45 minutes each. All rows but those of the decoupled basis are from a working tree between two "
    "commits, and name the earlier one.",
}
TABLES = ("kin40k",)
COUNTS = ("rules", "rates", "other_rates")


@dataclass(frozen=True)
class Config:
    """The paper's sizes; Adam's rates are ours."""

    rows: int | None = None
    inducing: int = 500
    lengthscale: float = 9.9
    variance: float = 50.0
    noise: float = 0.14
    joint_steps: int = 10
    steps: int = 20_000
    rates: tuple[float, ...] = (0.1, 0.03, 0.01)  # of decoupled
    other_rates: tuple[float, ...] = (0.03, 0.01, 0.003)
    check_rows: int = 2000
    rules: tuple[str, ...] = (*NATURAL, *ADAM)


FULL = Config(rates=(0.1, 0.01), other_rates=(0.01,))
QUICK = Config(
    rows=2000, inducing=20, joint_steps=5, steps=400, rates=(0.001,), other_rates=(), check_rows=500, rules=shared.SHORT
)
DIRECT = NATURAL[:2]  # rules that are run by the library's stepper on all rows


class Sums(NamedTuple):
    """All that a Gaussian likelihood sees of the rows, of features φ = (A, c): λ = 1/σ²."""

    H: jax.Array  # Σ λ φφᵀ
    b: jax.Array  # Σ λ y φ
    rest: jax.Array  # Σ log 2πσ² + λ y² + λ d


def cases(config: Config) -> list[dict]:
    """A case a rule; decoupled with several rates of Adam."""
    rates = {rule: (config.other_rates if "Adam" in rule else (None,)) for rule in config.rules}
    if "decoupled, Adam" in rates:
        rates["decoupled, Adam"] = config.rates
    return [{"rule": rule, "rate": rate} for rule in rates for rate in rates[rule]]


def run(case: dict, config: Config, folder: Path) -> dict:
    """Nats below the optimum along the steps of a rule."""
    data = head(training_part(folder, "kin40k", 0), config.rows)
    Z, O = (kmeans(np.asarray(data.X), config.inducing, seed) for seed in (0, 1))
    rule, kernel = case["rule"], Matern52(config.lengthscale, config.variance)
    model = shared.start(rule, kernel, Gaussian(config.noise), Z, O)
    best = optimum(rule, model, Z, O, data)
    if rule in DIRECT:
        return nats(shared.natural_course(shared.stepper_of(rule, 0.0), model, data, config.joint_steps), best)
    basis = Basis.of(model, Z, O)
    sums = sums_of(basis, data, config.noise)
    if rule in NATURAL:
        few = head(data, config.check_rows)
        theirs = shared.natural_course(shared.stepper_of(rule, case["rate"]), model, few, 3)["bound"]
        ours = mean_course(rule, case["rate"], basis, sums_of(basis, few, config.noise), 3)["bound"]
        worst = max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))
        if not worst < 1e-9:
            raise AssertionError(f"not the steps of the library: {ours}, {theirs}")
        return nats(mean_course(rule, case["rate"], basis, sums, config.steps), best) | {"difference": round(worst, 16)}
    difference = shared.compare(lambda model: bound(model.posterior, basis, sums), model, data)
    on_sums = lambda q, at: bound(q, *at)
    course = shared.adam_course(on_sums, model, (basis, sums), config.steps, case["rate"], shared.frozen(rule))
    return nats(course, best) | difference


def optimum(rule: str, model: Model, Z: np.ndarray, O: np.ndarray, data: Dataset) -> float:
    """The standard bound at the best q, in closed form."""
    with_points = lambda points: eqx.tree_at(lambda m: m.posterior, model, points, is_leaf=lambda x: x is None)
    beta, gamma = jnp.asarray(Z), jnp.asarray(O)
    if rule.startswith("coupled"):
        return float(collapsed(with_points(Collapsed(beta)), data).standard)
    if rule.startswith("decoupled"):
        return float(
            collapsed_decoupled(with_points(CollapsedDecoupled(beta, jnp.concatenate([beta, gamma]))), data).standard
        )
    return float(collapsed_orthogonal(with_points(CollapsedDecoupled(beta, gamma)), data).standard)


def nats(course: dict, best: float) -> dict:
    """Gaps in place of bounds."""
    return {"optimum": best, "steps": course["steps"], "gap": [number(best - bound, 7) for bound in course["bound"]]}


@partial(jax.jit, static_argnums=2)
def sums_of(basis: Basis, data: Dataset, noise: float) -> Sums:
    """Sums over all rows, in chunks."""

    def of(rows):
        A, c, d = basis.features(rows.X)
        phi, precision = jnp.concatenate([A, c]), rows.weight / noise
        rest = rows.weight * jnp.log(2 * jnp.pi * noise) + precision * (rows.y**2 + d)
        return Sums(gram(phi, precision), phi @ (precision * rows.y), jnp.sum(rest))

    return jax.tree.map(lambda x: jnp.sum(x, axis=0), lax.map(of, chunked(data, 4096)))


def bound(posterior: Any, basis: Basis, sums: Sums) -> jax.Array:
    """The standard bound: −½ [Σ (log 2πσ² + λy² + λd) − 2bᵀw + wᵀHw + tr(S H_AA)] − KL,  w = (h, a)."""
    h, a, S, divergence = basis(posterior)
    w, M = jnp.concatenate([h, a]), len(h)
    return -0.5 * (sums.rest - 2 * sums.b @ w + w @ (sums.H @ w) + jnp.sum(S * sums.H[:M, :M])) - divergence


def mean_course(rule: str, rate: float | None, basis: Basis, sums: Sums, steps: int) -> dict:
    """`OrthogonalNaturalGradient` at γ = τ = 1 by (16a) or (17), or Adam for a: after a step S is at its optimum."""
    (H, b, _), C, M = sums, basis.basis.C, basis.basis.Z.shape[0]
    eye, adam = jnp.eye(M), optax.adam(rate or 0.0)
    prior = jnp.zeros_like(H).at[:M, :M].set(eye).at[M:, M:].set(C.K)
    S_best, _ = invert(eye + H[:M, :M])

    def step(_, carry):
        m, a, state = carry
        slope = b - (H + prior) @ jnp.concatenate([m, a])
        g = slope[M:]
        if "Adam" in rule:
            updates, state = adam.update(-g, state)
            return m + S_best @ slope[:M], a + jnp.asarray(updates), state
        d = C.solve(g) if "(16a)" in rule else g / jnp.diagonal(C.K)
        # No further than the top of the bound along d.
        tau = jnp.minimum(1.0, g @ d / (d @ ((H + prior)[M:, M:] @ d)))
        return m + S_best @ slope[:M], a + tau * d, state

    @jax.jit
    def advance(m, a, state, count, S):
        m, a, state = lax.fori_loop(0, count, step, (m, a, state))
        q = MeanCovariance(m, S)
        posterior = Orthogonal(Z=basis.basis.Z, O=basis.basis.O, q=q, a=a)  # pyright: ignore[reportCallIssue]
        return m, a, state, bound(posterior, basis, sums)

    m, a = jnp.zeros(M), jnp.zeros(len(C.K))
    state, course, here = adam.init(a), [], 0
    for there in marks(steps, 55):
        m, a, state, value = advance(m, a, state, there - here, S_best if there else eye)
        here = there
        course.append(round(float(value), 6))
    return {"steps": marks(steps, 55), "bound": course}


table, figure, verdict = shared.table, shared.figure, shared.verdict
