"""Periods of a target: the periodogram finds them, noise has none, and a default fit begins with them."""

import numpy as np
import pytest

from pseudopoint import GPRegressor
from pseudopoint.starts.periods import FINENESS, Wave, waves

pytestmark = pytest.mark.edge

rng = np.random.default_rng(0)
x = np.sort(rng.uniform(0, 1, 300))
ones = np.ones(300)


def wave(cycles, noise=0.5):
    return (2 * x + np.sin(2 * np.pi * cycles * x) + noise * rng.normal(size=300))[:, None]


@pytest.mark.parametrize("cycles", [7, 12, 24, 28.57])
def test_a_period_is_found_in_noise_beside_a_trend_in_any_units_and_order(cycles):
    y = wave(cycles)
    (found,) = waves(x[:, None], y, ones)
    assert found.column == 0 and abs(found.cycles - cycles) <= 1 / FINENESS
    assert found.period == pytest.approx(np.ptp(x) / found.cycles)
    assert found.penalty == pytest.approx(np.log((300 / 2 - 3) * FINENESS))
    order = rng.permutation(300)
    columns = np.column_stack([rng.normal(size=300), 365 * x + 20_000])
    (other,) = waves(columns[order], 40 * y[order], ones)
    assert other.column == 1 and other.cycles == found.cycles


def test_two_periods_are_found_strongest_first():
    y = 2 * wave(28.6) + wave(9)
    assert [round(found.cycles) for found in waves(x[:, None], y, ones)] == [29, 9]


def test_noise_a_trend_and_columns_of_few_values_have_none():
    columns = np.column_stack([rng.normal(size=(300, 3)), rng.integers(0, 5, 300), ones])
    assert not waves(columns, rng.normal(size=(300, 2)), ones)
    assert not waves(x[:, None], np.exp(3 * x)[:, None] + rng.normal(size=(300, 1)), ones)


def test_the_periodogram_is_least_squares_with_weights():
    y, weight = wave(12, 2.0), rng.integers(1, 4, 300).astype(float)
    rows = np.repeat(np.arange(300), weight.astype(int))
    assert waves(x[:, None], y, weight)[0].cycles == waves(x[rows, None], y[rows], np.ones(len(rows)))[0].cycles


def test_a_default_fit_finds_the_period_and_forecasts():
    y = wave(28.57, 0.3)[:, 0]
    seen = x < 0.8
    model = GPRegressor(input_warp="none", target_warp="none").fit(x[seen, None], y[seen])
    selection = model.selection_
    taken = [part == "kernel" and chosen for part, chosen in zip(selection["part"], selection["chosen"], strict=True)]
    assert selection["choice"][taken.index(True)].startswith("matern52 + linear + periodic, 2")
    assert model.score(x[~seen, None], y[~seen]) > 0.6


def test_the_penalty_of_a_period_counts_in_the_choice(monkeypatch):
    """Where it is larger than any evidence, no period is taken: neither by the kernel nor under heavy tails."""
    monkeypatch.setattr(Wave, "penalty", property(lambda self: 1e6))
    model = GPRegressor(input_warp="none", target_warp="none").fit(x[:80, None], wave(24, 0.1)[:80, 0])
    choices = model.selection_["choice"]
    assert any("periodic" in choice for choice in choices)
    densities = model.selection_["log_density"][[part == "tails" for part in model.selection_["part"]]]
    taken = [choice for choice, chosen in zip(choices, model.selection_["chosen"], strict=True) if chosen]
    assert not any("periodic" in choice for choice in taken) and (densities > -1e5).all()
