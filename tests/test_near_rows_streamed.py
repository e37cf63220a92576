"""Near rows of fits to tables that are read part by part (`recipes.streamed`; methods o)."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_near_rows import SMALL, rows_of

from pseudopoint import GPClassifier, GPRegressor
from pseudopoint.commands import fit_table
from pseudopoint.recipes import near_rows
from pseudopoint.tables.rows import AbstractTableRows

pytestmark = pytest.mark.usefixtures("brief_search")

CLASSES = {"num_inducing": 20, "max_iter": 40, "input_warp": "none"}


def written(path: Path, X, y) -> str:
    """A Parquet table of several row groups."""
    pq.write_table(pa.table({**{f"x{d}": X[:, d] for d in range(X.shape[1])}, "y": y}), path, row_group_size=500)
    return str(path)


@pytest.fixture(scope="module")
def rows():
    return rows_of(0, 2400)


@pytest.fixture(scope="module")
def path(rows, tmp_path_factory):
    return written(tmp_path_factory.mktemp("table") / "rough.parquet", *rows)


@pytest.fixture(scope="module")
def model(path):
    return GPRegressor(**SMALL).fit(path, "y")


def test_they_correct_predictions_as_those_of_a_table_in_memory(model, path, rows):
    X, y = rows_of(1, 500)
    memory, plain = GPRegressor(**SMALL).fit(*rows), GPRegressor(**SMALL, near_rows=False).fit(path, "y")
    assert model.near_rows_ is not None and plain.near_rows_ is None
    assert model.bound_ == plain.bound_
    streamed, same, without = (each.log_density(X, y).mean() for each in (model, memory, plain))
    assert streamed > without + 0.2
    assert streamed > same - 0.05
    low, high = model.predict_interval(X, 0.9).T
    assert 0.84 < np.mean((low <= y) & (y <= high)) < 0.95
    trials = dict(zip(model.selection_["choice"], model.selection_["log_density"], strict=True))
    assert trials["the 64 nearest"] > trials["none"]


def test_no_more_rows_are_drawn_than_may_be_near(path, monkeypatch):
    """The evidence in `selection_` is scaled to all rows nevertheless."""
    drawn, sample = [], AbstractTableRows.sample
    spy = lambda rows, size, *at, **more: drawn.append((size, more)) or sample(rows, size, *at, **more)
    monkeypatch.setattr(AbstractTableRows, "sample", spy)
    monkeypatch.setattr(near_rows, "MOST", 2200)
    few = GPRegressor(**SMALL).fit(path, "y")
    assert drawn[-1] == (2200, {"everywhere": True})
    assert few.near_rows_ is not None and np.sum(np.asarray(few.near_rows_.weight) > 0) == 2200
    before, after = near_rows_evidence(few)
    told = next(note for note in few.notes_ if note.startswith("near rows:"))
    assert f"{after / 2400:.3f}, by the fit alone {before / 2400:.3f}" in told


def near_rows_evidence(model):
    table = model.selection_
    of = dict(zip(zip(table["part"], table["choice"], strict=True), table["log_density"], strict=True))
    return of["near rows", "none"], of["near rows", "the 64 nearest"]


def test_a_fit_that_resumes_has_the_same(model, path, tmp_path):
    first = GPRegressor(**SMALL).fit(path, "y", checkpoint=tmp_path / "kept")
    again = GPRegressor(**SMALL).fit(path, "y", checkpoint=tmp_path / "kept", resume=True)
    for name in ("X", "z", "y", "weight", "noise"):
        np.testing.assert_array_equal(getattr(again.near_rows_, name), getattr(first.near_rows_, name))
        np.testing.assert_array_equal(getattr(first.near_rows_, name), getattr(model.near_rows_, name))


def test_a_saved_model_and_one_with_more_rows_have_them(model, rows, tmp_path):
    X, y = rows_of(1, 300)
    model.save(tmp_path / "m.safetensors")
    loaded = GPRegressor.load(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    loaded.update(X, y)
    assert np.sum(np.asarray(loaded.near_rows_.weight) > 0) == len(rows[0]) + len(X)


def test_a_table_of_few_rows_has_none(tmp_path):
    assert GPRegressor(**SMALL).fit(written(tmp_path / "few.parquet", *rows_of(0, 1900)), "y").near_rows_ is None


@pytest.mark.parametrize("distinct", [1, 30])
def test_a_table_of_few_different_rows_has_none(distinct, tmp_path):
    X, y = (np.tile(each, (2400 // distinct, *[1] * (each.ndim - 1))) for each in rows_of(0, distinct))
    model = GPRegressor(**SMALL).fit(written(tmp_path / "alike.parquet", X, y), "y")
    assert model.near_rows_ is None and np.isfinite(model.predict(X[:3])).all()


@pytest.mark.parametrize("second, found", [(30.0, False), (0.1, True)])
def test_where_near_rows_do_not_pay_lengthscales_start_once_more_at_shorter_ones(second, found, path, monkeypatch):
    tried, learned = [], near_rows.learned
    spy = lambda near, rows, rounds, first: tried.append(first) or learned(near, rows, rounds, first)
    monkeypatch.setattr(near_rows, "learned", spy)
    monkeypatch.setattr(near_rows, "STARTS", (30.0, second))
    assert (GPRegressor(**SMALL).fit(path, "y").near_rows_ is not None) == found
    assert tried == [30.0, second]


def test_rows_come_from_all_parts(tmp_path):
    X, y = rows_of(0, 2400)
    order = np.argsort(X[:, 0])  # parts are places
    pq.write_table(
        pa.table({"x0": X[order, 0], "x1": X[order, 1], "y": y[order]}), tmp_path / "t.parquet", row_group_size=24
    )
    model = GPRegressor(**SMALL).fit(str(tmp_path / "t.parquet"), "y")
    assert np.sum(np.asarray(model.near_rows_.weight)) == 2400


def test_equal_rows_are_one_of_their_weight(rows, tmp_path):
    X, y = (np.concatenate([each, each]) for each in rows)
    model = GPRegressor(**SMALL).fit(written(tmp_path / "twice.parquet", X, y), "y")
    weight = np.asarray(model.near_rows_.weight)
    assert np.sum(weight == 2) == len(rows[0]) and np.sum(weight) == len(X)


def test_a_report_says_what_effects_leave_out(path, tmp_path):
    fit_table(path, "y", stream=False, report=tmp_path / "page.html", test_fraction=0.1, **SMALL)
    assert "They leave out what the nearest training rows add" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_classes_have_them_too(tmp_path):
    X, y = rows_of(0, 3000)
    path = written(tmp_path / "classes.parquet", X, np.where(y > 5, "above", "below"))
    model, plain = (GPClassifier(**CLASSES, near_rows=near).fit(path, "y") for near in (True, False))
    X, y = rows_of(1, 500)
    right = np.where(y > 5, 0, 1)
    assert list(model.classes_) == ["above", "below"] and model.near_rows_ is not None
    of = lambda each: np.mean(each.predict_log_proba(X)[np.arange(500), right])
    assert of(model) > of(plain) + 0.02
