"""Natural gradients against Adam for decoupled bases on ringnorm, Bernoulli likelihood, all but q fixed (figure 2b).

Full batches, |γ| = |β| = 500. The optimum is where "orthogonal, joint" ends: in (m, S, a) the bound is concave, and all
of these families hold the same posteriors (|α| = 1000, α = β ∪ γ, for the decoupled one), so theirs is the same. A row
holds the bound after some steps (`bound`); gaps are nats below the optimum, and relative to it. "coupled" has β alone,
and so an optimum of its own. `difference` is that of two programs for the same bound: Adam's steps are made in one
that computes features of rows once, for hyperparameters are constant (`Basis`), and it is compared with
`pseudopoint.bounds.elbo`, relative, where Adam starts and at random numbers.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pseudopoint.kernels import Matern52
from pseudopoint.likelihoods import AbstractLikelihood, Bernoulli
from pseudopoint.linalg import quad_diag
from pseudopoint.starts.inducing import kmeans

from . import _decoupled as shared
from ._decoupled import ADAM, NATURAL, Basis
from .settings import head, training_part

SOURCE = "Salimbeni, Cheng, Boots and Deisenroth 2018, figure 2b"
PUBLISHED = (
    "With inducing points and hyperparameters fixed, natural gradient methods are much faster to converge than "
    "ordinary gradients (Bernoulli likelihood).",
    "DECOUPLED fails to converge to the optimum after 20,000 iterations.",
)
CUT = {
    "rules": "HYBRID, ORTH and COUPLED by Adam are not run.",
    "natural_steps": "1000 of (16a), (17) and Adam for a, not 20,000. Rows of (16a) and (17) with 20,000 are in "
    "`results/paper`.",
    "": "The paper's figure shows the test log-likelihood; ours are gaps of the bound to its optimum. HYBRID is the "
    "form (11), where the paper's experiments have the original one. Adam has one rate, so that no best one is "
    "bracketed. The paper prints no hyperparameters: ours are those of a fit with M = 100. Our ringnorm has 20 inputs "
    "(theirs is listed with 21) and is another draw. Adam's rate is ours, 0.01 falling to 0. 'orthogonal, joint' is "
    "ours. All rows but those of the decoupled basis are from a working tree between two commits, and name the earlier "
    "one.",
}
TABLES = ("ringnorm",)
COUNTS = ("rules",)


@dataclass(frozen=True)
class Config:
    """The paper's sizes; hyperparameters rounded from 600 steps of NGD + Adam with M = 100."""

    rows: int | None = None
    inducing: int = 500
    lengthscale: float = 11.5
    variance: float = 80.0
    joint_steps: int = 100
    natural_steps: int = 20_000
    adam_steps: int = 20_000
    rate: float = 0.01
    rules: tuple[str, ...] = (*NATURAL, *ADAM)


FULL = Config(natural_steps=1000, rules=(*NATURAL, *ADAM[:2]))
QUICK = Config(rows=500, inducing=20, joint_steps=30, natural_steps=40, adam_steps=400, rules=shared.SHORT)


def cases(config: Config) -> list[dict]:
    """A case a rule; the quick ones first."""
    return [{"rule": rule} for rule in config.rules]


def run(case: dict, config: Config, folder: Path) -> dict:
    """The bound along the steps of a rule."""
    data = head(training_part(folder, "ringnorm", 0, scale_target=False), config.rows)
    kernel, X = Matern52(config.lengthscale, config.variance), np.asarray(data.X)
    Z, O = (kmeans(X, config.inducing, seed) for seed in (0, 1))
    rule = case["rule"]
    model = shared.start(rule, kernel, Bernoulli("logit"), Z, O)
    if rule in NATURAL:
        steps = config.joint_steps if rule in NATURAL[:2] else config.natural_steps
        return shared.natural_course(shared.stepper_of(rule, config.rate), model, data, steps)
    basis = Basis.of(model, Z, O)
    phi = basis.features(data.X)
    bound = lambda posterior, at: bernoulli_bound(posterior, at, model.likelihood)
    difference = shared.compare(lambda model: bound(model.posterior, (basis, phi, data.y)), model, data)
    at = (basis, phi, data.y)
    return shared.adam_course(bound, model, at, config.adam_steps, config.rate, shared.frozen(rule)) | difference


def bernoulli_bound(posterior: Any, at: Any, likelihood: AbstractLikelihood) -> jax.Array:
    """The standard bound from the basis, the features of all rows, and y."""
    basis, (A, c, d), y = at
    h, a, S, divergence = basis(posterior)
    return jnp.sum(likelihood.expectation(A.T @ h + c.T @ a, quad_diag(S, A) + d, y)) - divergence


table, figure, verdict = shared.table, shared.figure, shared.verdict
