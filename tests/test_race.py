"""Candidates of a search: their evidence is that of the rows that they are given, and what more rows decide."""

from importlib import import_module
from typing import Any

import jax
import numpy as np
import pytest
from scipy import stats
from test_choices import chosen

from pseudopoint import GPRegressor
from pseudopoint.data import dataset
from pseudopoint.kernels import Matern52
from pseudopoint.likelihoods import Gaussian
from pseudopoint.params import cast
from pseudopoint.posteriors import Model
from pseudopoint.recipes import race as races
from pseudopoint.recipes.candidates import Sample, State, sample_of
from pseudopoint.recipes.prior import LengthscalePrior
from pseudopoint.recipes.race import FLAT, LONG, WINDOW, Race
from pseudopoint.recipes.search import (
    CAUTION,
    FINALISTS,
    FIRST_ROUNDS,
    LEAST,
    MORE_ROUNDS,
    SAMPLE,
    TIMES,
    _most_rows,
    _Search,
)
from pseudopoint.recipes.starts import Warm, start_sparse
from pseudopoint.starts.hyperparameters import named_kernel
from pseudopoint.starts.inducing import RACE_ROWS
from pseudopoint.starts.periods import Wave
from pseudopoint.warps import SinhArcsinh

pytestmark = pytest.mark.edge

RNG = np.random.default_rng(0)
X = RNG.normal(size=(70, 3))
NOISE = 0.1 * RNG.normal(size=70)
Y = np.sin(2 * X[:, 0]) + X[:, 1] + NOISE


def race_and_rows(y) -> tuple[Race, Sample, Sample]:
    """A race of 40 rows, these, and all 70."""
    data = dataset(X, y, dtype="float64")
    few, more = (Sample.of_rows(sample_of(data, size, 0), np.zeros(3), -np.inf) for size in (40, 70))
    return Race(few, GPRegressor(lengthscale_prior=np.inf)._settings()), few, more


def state_of(target=None) -> State:
    model = cast(Model(Matern52(np.full(3, 1.5), 1.0), Gaussian(0.05)), np.float64)
    return State("matern52", model, (None,) * 3, target)


def test_the_evidence_is_that_of_the_rows_that_are_given():
    with jax.enable_x64(True):
        race, few, more = race_and_rows(Y)
        for given, rows in ((None, few), (more, more)):
            found = race.climbed(state_of(), 3, given)
            kernel, noise = found.model.kernel, float(found.model.likelihood.gaussian_noise)
            K = np.asarray(kernel(jax.numpy.asarray(rows.X), jax.numpy.asarray(rows.X)))
            covariance: Any = K + noise * np.eye(len(K))
            normal: Any = stats.multivariate_normal(np.zeros(len(K)), covariance)
            dense = normal.logpdf(rows.y)
            np.testing.assert_allclose(found.evidence, dense, rtol=1e-9)


def test_a_candidate_that_has_arrived_takes_no_more_iterations(monkeypatch):
    ended, maximise = [], races.maximise

    def watched(*arguments, **options):
        ended.append(maximise(*arguments, **options))
        return ended[-1]

    monkeypatch.setattr(races, "maximise", watched)
    with jax.enable_x64(True):
        race, *_ = race_and_rows(Y)
        state = race.climbed(race.climbed(state_of(), 200), 200)
        again = race.climbed(state, LONG)
    assert len(ended[-1].history) - 1 <= WINDOW + 1 < LONG
    assert state.evidence - 1e-9 <= again.evidence <= state.evidence + FLAT


def test_of_the_starts_under_heavy_tails_the_best_go_on(monkeypatch):
    searches: Any = import_module("pseudopoint.recipes.search")  # of the package, it is the function
    rounds, alternate = [], searches.alternate

    def watched(*arguments):
        rounds.append(arguments[-2])
        return alternate(*arguments)

    monkeypatch.setattr(searches, "alternate", watched)
    outliers = np.where(np.arange(70) % 12 == 0, 3.0, 0.0) * np.where(np.arange(70) % 24 == 0, 1, -1)
    with jax.enable_x64(True):
        race, *_ = race_and_rows(Y + outliers)
        _Search(race, None, 50).heavy_tails(race.climbed(state_of(), LONG))
    assert rounds == [FIRST_ROUNDS] * 2 + [MORE_ROUNDS] * FINALISTS


def test_rows_for_the_last_kernels_are_fewer_where_columns_are_many():
    assert _most_rows(600, 3) == TIMES * 600 == _most_rows(600, 16)
    assert 600 < _most_rows(600, 32) < TIMES * 600
    assert _most_rows(600, 100) < LEAST * 600  # then the sample decides alone


def test_the_last_kernels_are_compared_by_more_rows_where_there_are_more(monkeypatch, caplog):
    caplog.set_level("INFO", "pseudopoint")
    monkeypatch.setitem(SAMPLE, "balanced", 40)
    settings: dict[str, Any] = {"input_warp": "none", "target_warp": "none", "likelihood": "gaussian"}
    model = GPRegressor(**settings).fit(X, Y)
    tried = [choice for part, choice in zip(*list(model.selection_.values())[:2], strict=True) if "more rows" in part]
    assert "additive" in tried and 3 <= len(tried) <= 5
    assert chosen(model, "kernel") in tried and chosen(model, "kernel, more rows") is None  # told once
    said = [record.getMessage() for record in caplog.records]
    parts = [text.split(" (")[0] for text in said]  # what a terminal shows
    assert parts == ["search: start", "search: kernel", "search: kernel, more rows", "fitting by the method exact"]
    again = GPRegressor(**settings).fit(X[:40], Y[:40])
    assert chosen(again, "kernel") and not any("more rows" in part for part in again.selection_["part"])


def test_the_kernel_of_highest_evidence_by_more_rows_is_taken_and_then_has_the_evidence_of_the_sample(monkeypatch):
    with jax.enable_x64(True):
        race, _, more = race_and_rows(Y)
        by_sample = {"matern52": 0.0, "rbf": 9.0, "additive": -50.0}
        by_more = {"matern52": 0.0, "rbf": 5.0, "additive": 40.0}

        def climbed(state, iterations, rows=None):
            return state._replace(evidence=(by_more if rows is more else by_sample).get(state.name, -99.0))

        monkeypatch.setattr(race, "climbed", climbed)
        now = state_of()._replace(evidence=0.0)
        alone, with_more = (_Search(race, rows, 50).choose_kernel(now) for rows in (None, more))
    assert (alone.name, alone.evidence) == ("rbf", 9.0)
    assert (with_more.name, with_more.evidence) == ("additive", -50.0)


@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("gain, taken", [(-1.0, "rbf"), (1.0, "orthogonal_additive")])
def test_the_kernel_of_products_has_to_gain_for_every_row(more, gain, taken, monkeypatch):
    with jax.enable_x64(True):
        race, _, rows = race_and_rows(Y)
        evidence = lambda rows: {"matern52": 0.0, "rbf": 5.0, "orthogonal_additive": 5.0 + CAUTION * len(rows.y) + gain}
        monkeypatch.setattr(
            race,
            "climbed",
            lambda state, _, rows=None: state._replace(evidence=evidence(rows or race.rows).get(state.name, -99.0)),
        )
        found = _Search(race, rows if more else None, 50).choose_kernel(state_of()._replace(evidence=0.0))
    assert found.name == taken


@pytest.mark.parametrize("shown", [[], [Wave(0, 1.4, 3.2, 10)], [Wave(0, 1.5, 3.0, 10)]])
def test_a_kernel_with_a_wave_stays_where_the_rows_show_it_no_longer(shown, monkeypatch):
    """A second choice is by rows of other weights, as heavy tails give them."""
    periodograms = [[Wave(0, 1.5, 3.0, 10)], shown]
    monkeypatch.setattr(import_module("pseudopoint.recipes.search"), "waves", lambda *_: periodograms.pop(0))
    with jax.enable_x64(True):
        race, _, _ = race_and_rows(Y)

        def climbed(state, iterations, rows=None):
            race.base(state)  # whose name has to be known
            return state._replace(evidence=9.0 if "3 cycles" in state.name else 0.0)

        monkeypatch.setattr(race, "climbed", climbed)
        search = _Search(race, None, 50)
        first = search.choose_kernel(state_of()._replace(evidence=0.0))
        tried = len(race.trials)
        again = search.choose_kernel(first)
    assert first.name == again.name == "matern52 + linear + periodic, 3 cycles"
    assert [trial.choice for trial in race.trials[tried:]].count(first.name) == 1  # as it is, not begun once more


@pytest.mark.parametrize("outlier", [False, True])
def test_heavy_tails_are_tried_where_errors_with_the_warp_or_without_it_show_them(outlier):
    y = np.where(np.arange(70) % 10 == 0, Y + 4.0, Y) if outlier else Y
    with jax.enable_x64(True):
        race, _, _ = race_and_rows(y)
        _Search(race, None, 50).heavy_tails(state_of(SinhArcsinh(0.0, 1.0, 0.0, 0.6)))  # takes outliers in
    assert len([trial for trial in race.trials if trial.part == "tails"]) == (5 if outlier else 1)


def test_the_start_on_a_sample_of_a_large_table_switches_off_no_part_that_the_search_found():
    """Within a factor of ten of what was found: a variance that falls to nothing in a first long step has no slope."""
    N = RACE_ROWS + 200
    X = np.random.default_rng(3).uniform(-2, 2, (N, 2))
    settings: Any = GPRegressor(num_inducing=20)._settings()
    with jax.enable_x64(True):
        data = dataset(X, np.sin(4 * X[:, 0]) + 0.3 * np.random.default_rng(4).normal(size=N), dtype="float64")
        found = cast(Model(named_kernel("additive", 1.0, 1.0, 2), Gaussian(0.1)), np.float64)
        prior = LengthscalePrior.around(found.kernel, settings)
        model, _, _ = start_sparse(found, data, settings, prior, Warm(found))
        before, after = (np.concatenate([np.ravel(x) for x in jax.tree.leaves(m.kernel)]) for m in (found, model))
    assert np.all(np.abs(np.log(after / before)) <= np.log(10) * 1.001)
