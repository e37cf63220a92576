"""What the report says of columns: importance by the table's own columns, the rows that surprise, enough points."""

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pseudopoint import RBF, GPRegressor
from pseudopoint.commands import fit_table, inspect_model
from pseudopoint.commands.enough import advice
from pseudopoint.commands.explained import importances, inputs, surprising
from pseudopoint.commands.kinds import Regression
from pseudopoint.tables import TableEncoder

pytestmark = pytest.mark.edge


@pytest.fixture(scope="module")
def fitted():
    """A model of `size` alone, beside a category and a number that it ignores; one row has a wrong target."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"size": rng.uniform(-2, 2, 60), "city": ["Oslo", "Rome", "Paris"] * 20})
    table["other"] = rng.uniform(0, 1, 60)
    table["y"] = 3 * np.sin(table["size"]) + 0.1 * rng.standard_normal(60)
    encoder, _ = TableEncoder.learn(table, "y")
    X, y = encoder.encode(table)[0], encoder.target(table)
    model = GPRegressor(RBF().on(0), method="collapsed", num_inducing=8, effort="fast", max_iter=15).fit(X, y)
    table.loc[17, "y"] = 50.0
    kind = Regression(model, encoder)
    return kind, X, y, table, kind.score([table], keep=True)


def test_a_column_that_does_nothing_has_no_importance_and_dummies_are_one(fitted):
    kind, X, _, _, scored = fitted
    worse = importances(kind, scored)
    assert len(worse) == 3 and worse[1:] == [0, 0] and worse[0] > 0
    shown, together = inputs(kind, X, None, scored)
    assert [each.name for each in shown][0] == "size" and abs(together) < 1e-9
    assert sorted(next(each for each in shown if each.name == "city").values) == ["Oslo", "Paris", "Rome"]


def test_the_wrong_row_surprises_most_and_is_shown_with_its_values(fitted):
    kind, X, _, table, scored = fitted
    header, rows = surprising(kind, inputs(kind, X, None, scored)[0], scored, table)
    assert rows[0][:2] == ["18", "50"] and rows[0][header.index("city")] == table.at[17, "city"]


def test_the_exact_evidence_says_whether_points_are_enough(fitted):
    kind, X, y, _, _ = fitted
    assert advice(kind.model, X, y).startswith("8 inducing points are enough")
    few = GPRegressor(RBF(0.3), method="collapsed", num_inducing=2, effort="fast", max_iter=1).fit(X[:, :1], y)
    assert "the exact evidence of this kernel and noise is" in advice(few, X[:, :1], y)


def test_a_model_file_knows_how_often_its_rows_were_seen(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 6, 100)
    table = pd.DataFrame({"x": x, "often": 0.05, "y": np.sin(x) + 0.1 * rng.standard_normal(100)})
    table.to_csv(tmp_path / "t.csv", index=False)
    settings: dict[str, Any] = {"kernel": "rbf", "method": "collapsed", "num_inducing": 3, "effort": "fast"}
    files = {"out": tmp_path / "m", "weights": "often"}
    result = fit_table(tmp_path / "t.csv", "y", test_fraction=0.0, max_iter=20, **files, **settings)
    gap = result["upper_bound"] - result["bound"]
    assert gap / 100 < 0.01 < gap / 5, "small for 100 rows, and not for 5, which is what the weights count"
    assert result["advice"].startswith("More inducing points than 3 may help: the exact evidence")
    assert inspect_model(tmp_path / "m")["advice"].startswith("To see whether more inducing points than 3 help")


@pytest.mark.parametrize("warp", ["none", "yeo_johnson"])
def test_the_advice_on_points_counts_a_row_as_often_as_it_was_seen(warp):
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 6, (60, 1))
    y = np.exp(np.sin(3 * X[:, 0])) + 0.05 * rng.standard_normal(60)
    often = rng.integers(0, 4, 60).astype(float)
    effort = "fast" if warp == "none" else "balanced"
    model = GPRegressor("rbf", method="collapsed", num_inducing=4, effort=effort, max_iter=15, input_warp="none")
    model.set_params(target_warp=warp).fit(X, y, often)
    said, again = advice(model, X, y, often), np.repeat(np.arange(60), often.astype(int))
    assert said.startswith("More inducing points than 4 may help: the exact evidence of this kernel and noise is")
    assert said == advice(model, X[again], y[again])


@pytest.mark.parametrize("labels", [False, True])
def test_every_number_of_a_page_counts_rows_by_their_weights(tmp_path, labels):
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, 240)
    y = np.where(x < -0.4, 3 * rng.normal(size=240), x + 0.05 * rng.normal(size=240))
    weight = np.where(x < -0.4, 1.0, 20.0)
    target = np.where(y > 0, "up", "down") if labels else y
    pd.DataFrame({"x": x, "y": target, "w": weight}).to_csv(tmp_path / "t.csv", index=False)
    quick = {"effort": "fast", "max_iter": 15, "num_inducing": 10, "test_fraction": 0.4}
    page = tmp_path / "p.html"
    test = fit_table(tmp_path / "t.csv", "y", weights="w", report=page, **quick)["test"]
    said = re.sub(r"<[^>]*>", " ", page.read_text())
    shares = {
        r"([\d.]+) % predicted right": "accuracy",
        r"expected calibration error ([\d.]+) %": "calibration_error",
    }
    for sentence, measure in (shares if labels else {r"([\d.]+) % lie inside their": "coverage"}).items():
        found = re.search(sentence, said)
        assert found and float(found[1]) == pytest.approx(100 * test[measure], abs=0.06)


def test_an_effect_on_counts_is_of_a_unit_of_exposure(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.uniform(size=80), "E": rng.integers(500, 5000, 80)})
    table["claims"] = rng.poisson(table.E * 0.01 * np.exp(table.x))
    table.to_csv(tmp_path / "p.csv", index=False)
    quick = {"effort": "fast", "max_iter": 5, "num_inducing": 5, "likelihood": "poisson"}
    fit_table(tmp_path / "p.csv", "claims", exposure="E", report=tmp_path / "p.html", **quick)
    assert "change of claims per unit of E" in (tmp_path / "p.html").read_text()
