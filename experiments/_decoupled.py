"""What experiments of the decoupled paper share: its families, courses of q alone, and gaps to the optimum in tables,
figures and verdicts. Equations are numbered as by Salimbeni, Cheng, Boots and Deisenroth (2018).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from matplotlib.figure import Figure

from pseudopoint.bounds import elbo
from pseudopoint.data import Dataset
from pseudopoint.gaussians import MeanChol, MeanPrecision
from pseudopoint.kernels import AbstractKernel
from pseudopoint.likelihoods import AbstractLikelihood
from pseudopoint.linalg import factorise
from pseudopoint.optimise.minibatch import (
    AbstractStepper,
    ApproximateMean,
    ExactMean,
    JointMean,
    NaturalGradient,
    OrthogonalNaturalGradient,
    constant,
)
from pseudopoint.params import cast, trainable
from pseudopoint.posteriors import Decoupled, Hybrid, InverseHybrid, Model, Orthogonal, OrthogonalBasis, Whitened
from pseudopoint.reproduce import Judgement, judged, untested

from ._full_batches import course
from ._rows import marks, places
from .settings import HELD

NATURAL = ("orthogonal, joint", "coupled", "orthogonal, (16a)", "orthogonal, (17)", "orthogonal, Adam for a")
ADAM = ("decoupled, Adam", "hybrid, Adam", "orthogonal, Adam", "coupled, Adam")
PRINTED = ("orthogonal, (16a)", "orthogonal, (17)", "orthogonal, Adam for a")  # ORTHNAT as the paper has it
SHORT = ("orthogonal, joint", "orthogonal, (16a)", "decoupled, Adam")
POINTS = (*HELD, lambda m: m.posterior.O)


def model_of(
    family: str, natural: bool, kernel: AbstractKernel, likelihood: AbstractLikelihood, Z: np.ndarray, O: np.ndarray
) -> Model:
    """q(v) = N(0, I), in coordinates for natural steps or for ordinary ones, and a = 0; of (8), B = I, α = β ∪ γ."""
    M = len(Z)
    zero, eye, none = np.zeros(M), np.eye(M), np.zeros(len(O))
    q = (MeanPrecision if natural else MeanChol)(zero, eye)
    of: dict[str, Callable[[], Any]] = {  # pyright does not see the fields' converters
        "coupled": lambda: Whitened(Z, q),
        "orthogonal": lambda: Orthogonal(Z=Z, O=O, q=q, a=none),  # pyright: ignore
        "hybrid": lambda: Hybrid(Z=Z, O=O, q=q, a=none),  # pyright: ignore
        "original hybrid": lambda: InverseHybrid(Z=Z, O=O, a=none, b=zero, B=eye),  # pyright: ignore
        "decoupled": lambda: Decoupled(Z=Z, O=np.concatenate([Z, O]), a=np.zeros(M + len(O)), B=eye),  # pyright: ignore
    }
    return cast(Model(kernel, likelihood, of[family]()), "float64")


def frozen(rule: str) -> tuple:
    """What stays. The coupled basis is the orthogonal one with a = 0, so that Adam moves it in the same program."""
    return (*POINTS, lambda m: m.posterior.a) if rule == "coupled, Adam" else POINTS


def start(rule: str, kernel: AbstractKernel, likelihood: AbstractLikelihood, Z: np.ndarray, O: np.ndarray) -> Model:
    """The start of a rule of `NATURAL` or `ADAM`."""
    family = "orthogonal" if rule == "coupled, Adam" else rule.split(",")[0]
    return model_of(family, rule in NATURAL, kernel, likelihood, Z, O)


def stepper_of(rule: str, rate: float) -> AbstractStepper:
    """γ = 1. "Adam for a" is what the paper's own code does."""
    if rule == "coupled":
        return NaturalGradient(constant(1.0), frozen=HELD, tight=False)
    if rule == "orthogonal, Adam for a":
        return NaturalGradient(constant(1.0), optax.adam(rate), POINTS, False)
    mean = {"joint": JointMean(), "(16a)": ExactMean(), "(17)": ApproximateMean()}[rule.split(", ")[1]]
    return OrthogonalNaturalGradient(constant(1.0), mean=mean, frozen=POINTS, tight=False)


def natural_course(stepper: AbstractStepper, model: Model, data: Dataset, steps: int) -> dict:
    """The bound before each step and after the last."""
    bound, _, _, rejected = course(stepper, model, data, steps)
    at = marks(steps, 55)
    return {"steps": at, "bound": [round(float(bound[t]), 6) for t in at], "rejected": rejected}


class Basis(eqx.Module):
    """What constant hyperparameters leave constant. With h and a of E f(x) = a_xᵀh + c_xᵀa, as `Orthogonal` has them,
        KL = ½ (‖h‖² + aᵀCa + tr S − log |S| − M),
    for all families; they differ in the numbers that Adam moves:
        orthogonal  h = m          hybrid  h = m + A_O a          decoupled  h = Lᵀb + A_O a, S = (I + LᵀBL)⁻¹.
    """

    basis: OrthogonalBasis

    @staticmethod
    def of(model: Model, Z: np.ndarray, O: np.ndarray) -> "Basis":
        """That of two sets of points."""
        q = MeanPrecision(np.zeros(len(Z)), np.eye(len(Z)))
        orthogonal = Orthogonal(Z=Z, O=O, q=q, a=np.zeros(len(O)))  # pyright: ignore[reportCallIssue]
        return Basis(OrthogonalBasis.of(cast(orthogonal, "float64"), model.kernel))

    def features(self, X: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """A, c(O, X) and d."""
        return self.basis(X)

    def __call__(self, posterior: Any) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """h, a, S and the KL."""
        Kuu, A_O, M = self.basis.Kuu, self.basis.A_O, self.basis.Z.shape[0]
        if isinstance(posterior, Decoupled):
            eye = jnp.eye(M, dtype=A_O.dtype)
            W = Kuu.L.T @ jnp.tril(posterior.B)
            P = factorise(eye + W @ W.T)
            half = P.whiten(eye)
            a, S, half_logdet = posterior.a[M:], half.T @ half, -P.half_logdet()
            h = Kuu.L.T @ posterior.a[:M] + A_O @ a
        else:
            a, S = posterior.a, posterior.q.covariance()
            half_logdet = posterior.q.half_logdet()
            h = posterior.q.mean + (A_O @ a if isinstance(posterior, Hybrid) else 0)
        return h, a, S, 0.5 * (h @ h + a @ (self.basis.C.K @ a) + jnp.trace(S) - M) - half_logdet


def compare(bound: Callable[[Model], jax.Array], model: Model, data: Dataset) -> dict:
    """The greater relative difference from `elbo`, at this model and at random numbers."""
    every = trainable(model, *(POINTS if hasattr(model.posterior, "O") else HELD))
    noise = 0.1 * np.random.default_rng(0).normal(size=every.vector.shape) / np.sqrt(len(model.posterior.Z))
    ours, theirs = jax.jit(bound), jax.jit(lambda model: elbo(model, data, len(data)).standard)
    pairs = [(float(ours(m)), float(theirs(m))) for m in (model, every.rebuild(every.vector + noise))]
    worst = max(abs(a - b) / abs(b) for a, b in pairs)
    if not worst < 1e-9:
        raise AssertionError(f"not the bound of the library: {pairs}")
    return {"difference": float(f"{worst:.2g}")}


def adam_course(
    bound: Callable[..., jax.Array], model: Model, at: Any, steps: int, rate: float, held: tuple = POINTS
) -> dict:
    """The bound after some of Adam's steps on all numbers of q; `bound` is a function of (posterior, at). The rate
    falls to 0 by a cosine: constant ones end in jumps, which would be held against the basis."""
    every, adam = trainable(model, *held), optax.adam(optax.cosine_decay_schedule(rate, steps))
    objective = lambda vector, at: bound(every.rebuild(vector).posterior, at)

    @jax.jit
    def advance(vector, state, count, at):
        def body(_, carry):
            updates, state = adam.update(-jax.grad(objective)(carry[0], at), carry[1])
            return carry[0] + jnp.asarray(updates), state

        vector, state = lax.fori_loop(0, count, body, (vector, state))
        return vector, state, objective(vector, at)

    vector, state, bounds, here = every.vector, adam.init(every.vector), [], 0
    for there in marks(steps, 55):
        vector, state, value = advance(vector, state, there - here, at)
        here = there
        bounds.append(round(float(value), 6))
    return {"steps": marks(steps, 55), "bound": bounds}


class Gaps(NamedTuple):
    """Nats below the optimum, after so many steps, by a rule at one rate of Adam, or at none."""

    name: str
    rule: str
    rate: float | None
    steps: list[int]
    gap: np.ndarray
    optimum: float

    def within(self, share: float = 1e-6) -> int | None:
        """The first step of those kept after which the bound is within this share of the optimum."""
        near = np.flatnonzero(self.gap <= share * abs(self.optimum))
        return self.steps[near[0]] if len(near) else None


def gaps(rows: list[dict]) -> list[Gaps]:
    """By the rule, and Adam's rate where there is one. Where rows have no optimum, it is where the joint rule ends, of
    the coupled basis where its natural steps end."""
    end = lambda rule: next((row["bound"][-1] for row in rows if row["rule"] == rule and "bound" in row), np.nan)
    name = lambda row: row["rule"] + (f", {row['rate']:g}" if row.get("rate") else "")
    best = lambda row: row.get("optimum", end("coupled" if row["rule"].startswith("coupled") else NATURAL[0]))
    gap = lambda row: np.array(row["gap"]) if "gap" in row else best(row) - np.array(row["bound"])
    return [Gaps(name(row), row["rule"], row.get("rate"), row["steps"], gap(row), best(row)) for row in rows]


def table(rows: list[dict]) -> list[list[str]]:
    """A line a rule: gaps after some steps, and the first step within a millionth of the optimum."""
    limits = (1, 10, 100, 1000, 20_000)
    lines = [["rule", "optimum", *(f"gap after {t}" for t in limits), "at the end", "relative", "first within 1e-6"]]
    for of in gaps(rows):
        at = zip(limits, of.gap[places(of.steps, limits)], strict=True)
        cells = [f"{gap:.4g}" if limit <= of.steps[-1] else "" for limit, gap in at]
        first = of.within()
        cells += [f"{of.gap[-1]:.4g}", f"{of.gap[-1] / abs(of.optimum):.2g}", "never" if first is None else str(first)]
        lines.append([of.name, f"{of.optimum:.2f}", *cells])
    return lines


def figure(rows: list[dict]) -> Figure:
    """Relative gaps along the steps."""
    picture = Figure(figsize=(7, 4.5), layout="constrained")
    axes = picture.subplots()
    for of in gaps(rows):
        axes.plot(of.steps, np.maximum(of.gap / abs(of.optimum), 1e-12), label=of.name)
    axes.set(xlabel="steps", ylabel="relative gap to the optimum", yscale="log")
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xlim(left=0)
    axes.legend(fontsize=8)
    return picture


def verdict(rows: list[dict]) -> list[Judgement]:
    """Are the paper's natural methods there much sooner than ordinary gradients, and is DECOUPLED not there at all?"""
    every = {rule: [of for of in gaps(rows) if of.rule == rule and np.isfinite(of.optimum)] for rule in NATURAL + ADAM}
    best = {rule: min(some, key=lambda of: of.gap[-1]) for rule, some in every.items() if some}
    edges = {rule: at_edge(some) for rule, some in every.items() if some and "Adam" in rule}
    steps = {rule: of.within() for rule, of in best.items()}
    said = "Steps to within 1e-6 of the optimum (relative), each at its best rate: " + ", ".join(
        f"{rule} {n:,}"
        if n is not None
        else f"{rule} not in {best[rule].steps[-1]:,} ({best[rule].gap[-1]:.4g} nats off)"
        for rule, n in steps.items()
    )
    missing = [rule for rule in (*PRINTED, "coupled", *ADAM) if rule not in best]
    first = untested(f"Rows are missing: {'; '.join(missing)}. {said}.")
    if not missing:
        # Much faster: by a factor of 10. What is not there counts as its last step.
        slow = min(steps[rule] or best[rule].steps[-1] for rule in ADAM)
        fast = {rule: max(steps[rule] or 10 * best[rule].steps[-1], 1) for rule in (*PRINTED, "coupled")}
        margins = {rule: [float(np.log(slow / n / 10))] for rule, n in fast.items()}
        first = judged(margins, "log of ratio over 10", said, sum(edges.values(), []))
    decoupled = best.get(ADAM[0])
    if decoupled is None:
        return [first, untested(f"It takes '{ADAM[0]}' and its optimum.")]
    off = float(np.log(max(decoupled.gap[-1], 1e-300) / (1e-6 * abs(decoupled.optimum))))
    text = f"{decoupled.name} is {decoupled.gap[-1]:.4g} nats of {abs(decoupled.optimum):.4g} off after "
    text += f"{decoupled.steps[-1]:,}."
    return [first, judged({"": [off]}, "log of the relative gap over 1e-6", text, edges[ADAM[0]])]


def at_edge(some: list[Gaps]) -> list[str]:
    """The best rate of a rule, if there is none below or none above it."""
    best, rates = min(some, key=lambda of: of.gap[-1]), sorted(of.rate or 0.0 for of in some)
    return [f"{best.name}, the best of {len(rates)}"] if (best.rate or 0.0) in (rates[0], rates[-1]) else []
