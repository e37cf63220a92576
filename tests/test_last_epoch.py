"""q alone in the last epoch of a fit by minibatches: it starts from what was learned, and never lowers the bound (of
a sample, where the rows are read part by part)."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pseudopoint import GPClassifier
from pseudopoint.data import dataset
from pseudopoint.likelihoods import Bernoulli, Gaussian, Softmax
from pseudopoint.optimise.fullbatch import FitError
from pseudopoint.optimise.minibatch import with_q
from pseudopoint.recipes import Settings, fit_model, methods, streamed
from pseudopoint.recipes.families import family_steppers
from pseudopoint.starts.hyperparameters import named_kernel


@pytest.mark.parametrize(
    "posterior, likelihood, first",
    [("whitened", Bernoulli(), 0.1), ("whitened", Gaussian(0.1), 1.0)]
    + [("diagonal", Bernoulli(), 0.1), ("diagonal", Gaussian(0.1), 0.1), ("orthogonal", Gaussian(0.1), 1.0)],
)
def test_a_last_epoch_starts_from_what_was_learned(posterior, likelihood, first):
    """Where its steps are no averages that end at the best q."""
    steppers: Any = family_steppers(Settings(posterior=posterior, batch_size=10), 1000, likelihood, None)
    learning, settling, _ = steppers
    assert float(learning.gamma(0)) == 1.0 and float(settling.gamma(0)) == pytest.approx(first)
    again, _, _ = family_steppers(Settings(posterior=posterior, batch_size=10), 1000, likelihood, None, 10.0)
    assert float(again.gamma(0)) == pytest.approx(0.1)


@pytest.fixture(scope="module")
def classes():
    """Eight classes that overlap, in more rows than are taken at once."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (1500, 2))
    score = np.sin(3 * X @ rng.normal(size=(2, 8))) + 0.5 * rng.gumbel(size=(1500, 8))
    return X, np.argmax(score, axis=1).astype(float)


def minibatch_fit(classes, monkeypatch):
    """Its bound, and those before and after the epoch of q alone."""
    monkeypatch.setattr("pseudopoint.recipes.ends.AT_ONCE", 1)
    settle, seen = methods.settle, []

    def spy(*given, **options):
        seen.append(settle(*given, **options))
        return seen[-1]

    monkeypatch.setattr(methods, "settle", spy)
    settings = Settings(method="svgp", max_iter=60, batch_size=100, num_inducing=20, dtype="float64")
    with jax.enable_x64(True):
        data = dataset(*classes, dtype="float64")
        bound = fit_model(named_kernel("rbf", 0.5, 4.0, 2), Softmax(8), data, settings).bound
    return bound, [fitted.bound for fitted in seen]


def test_an_epoch_of_q_alone_raises_the_bound(classes, monkeypatch):
    bound, (before, after) = minibatch_fit(classes, monkeypatch)
    assert bound == after > before


def test_where_it_would_fall_q_stays_as_it_was(classes, monkeypatch):
    forgotten = lambda state, *given: with_q(state.model, jax.tree.map(lambda x: 0.5 * x, state.model.posterior.q))
    monkeypatch.setattr(methods, "_after_an_epoch", forgotten)
    bound, (before, after) = minibatch_fit(classes, monkeypatch)
    assert bound == before > after


def test_where_all_of_its_steps_are_rejected_q_stays_as_it_was(classes, monkeypatch):
    fit = methods.fit

    def fails(state, stepper, *given, **options):
        if stepper.hyper_optimiser is None:
            raise FitError("all of 15 steps in a row had to be rejected")
        return fit(state, stepper, *given, **options)

    monkeypatch.setattr(methods, "fit", fails)
    bound, (before, after) = minibatch_fit(classes, monkeypatch)
    assert bound == before == after


def forgets(made):
    return replace(made, model=with_q(made.model, jax.tree.map(lambda x: 0.5 * x, made.model.posterior.q)))


def breaks(made):
    return replace(made, model=with_q(made.model, jax.tree.map(lambda x: np.nan * x, made.model.posterior.q)))


def rejects(made):
    raise FitError("all of 15 steps in a row had to be rejected")


@pytest.mark.edge
@pytest.mark.parametrize("ends", [None, forgets, breaks, rejects])
def test_a_fit_part_by_part_keeps_the_better_q(classes, tmp_path, monkeypatch, ends):
    path, steps, report, seen = str(tmp_path / "classes.parquet"), streamed._steps, streamed.elbo_report, {}

    def spy_of_steps(stage, *given, **options):
        state, made = steps(stage, *given, **options)
        if stage == "settling" and ends is not None:
            state = ends(state)
        seen[stage] = state.model
        return state, made

    def spy_of_the_end(model, rows):
        seen["kept"] = model
        return report(model, rows)

    monkeypatch.setattr(streamed, "_steps", spy_of_steps)
    monkeypatch.setattr(streamed, "elbo_report", spy_of_the_end)
    X, y = classes
    pq.write_table(pa.table({"a": X[:, 0], "b": X[:, 1], "y": y.astype(int)}), path)
    given: Any = {"num_inducing": 20, "max_iter": 60, "effort": "fast", "batch_size": 100}
    GPClassifier(**given).fit(path, "y")
    assert seen["kept"] is seen["steps" if ends else "settling"]
