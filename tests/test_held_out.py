"""Rows held out by time, the fit to all rows after measuring, and columns of weights."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from pseudopoint import GPRegressor
from pseudopoint.cli import app
from pseudopoint.commands import fit_table, inspect_model
from pseudopoint.commands.held_out import HeldOut, learned_encoder, rows_of
from pseudopoint.tables import TableError

pytestmark = pytest.mark.edge
QUICK: dict[str, Any] = {"effort": "fast", "method": "exact", "max_iter": 2, "initial": "robust"}
N = 50


def series() -> pd.DataFrame:
    """A shuffled table of days, whose last ten differ from all others."""
    rng = np.random.default_rng(0)
    days = rng.permutation(N)
    frame = pd.DataFrame({"day": pd.Timestamp("2024-01-01") + pd.to_timedelta(days, "D"), "town": "a"})
    frame["town"] = np.where(days >= 40, "new", rng.choice(["a", "b"], N))
    frame["often"] = rng.integers(1, 4, N).astype(float)
    frame["y"] = days / 10 + rng.normal(size=N).round(2)
    return frame


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("series")
    series().to_csv(folder / "t.csv", index=False)
    return folder


MODEL = GPRegressor(**QUICK)


def divided(frame=None, **how):
    return rows_of(series() if frame is None else frame, "y", MODEL, False, HeldOut(**how).checked())


@pytest.mark.parametrize("how", [{"start": "2024-02-10"}, {"last": 0.2}, {"last": 0.2, "time": "day"}])
def test_rows_held_out_by_time_are_the_last_ones(how):
    rows = divided(**how)
    assert rows.held_out is not None
    assert len(rows.held_out) == 10 and bool(rows.train["day"].max() < rows.held_out["day"].min())
    assert "the 10 rows held out are the last ones in time, by column 'day'" in rows.notes


def test_a_time_split_never_sees_the_future(tmp_path):
    measures = []
    for other in (False, True):
        frame = series()
        if other:  # another future: other texts, other units, other kinds of cells
            later = frame["day"] >= "2024-02-10"
            frame["often"] = frame["often"].astype(object).mask(later, "unknown")
            frame["town"] = frame["town"].mask(later, "elsewhere")
        rows = divided(frame, last=0.2)
        assert not any("new" in name or "elsewhere" in name for name in rows.encoder.feature_names)
        X, _ = rows.encoder.inputs(rows.train)
        measures.append(MODEL.fit(X, rows.encoder.target(rows.train)).predict(X))
    np.testing.assert_array_equal(*measures)


def test_split_measured_fit_and_final_fit_read_cells_alike():
    days = pd.date_range("2023-01-01", "2024-12-31")
    days = days[(days.day <= 12) | (days >= "2024-12-01")]  # of which the last alone tell days from months
    late = np.asarray(days >= "2024-12-13")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"day": days.strftime("%d/%m/%Y"), "y": rng.normal(size=len(days))})
    frame["mass"] = [f"{n},{n}00" for n in range(1, len(days) + 1)]  # 1,100 is 1.1, as the last ones tell
    frame.loc[late, "mass"] = [f"1.{n}00,5" for n in range(1, late.sum() + 1)]
    frame["share"] = [f"{n % 90}{' %' if end else ''}" for n, end in enumerate(late)]
    rows = divided(frame, start="13/12/2024")
    assert rows.held_out is not None and len(rows.held_out) == 19
    whole, _ = learned_encoder(rows.whole, "y", False, (), None)
    format = lambda encoder: {column.name: column.format for column in encoder.columns}
    assert format(rows.encoder) == format(whole)
    assert format(whole)["day"].order == "day" and format(whole)["mass"].decimal == ","
    assert format(whole)["share"].unit == "%"
    later = rows.encoder.inputs(rows.held_out)[0][:, rows.encoder.places["day"][0]]
    assert later.min() > rows.encoder.inputs(rows.train)[0][:, rows.encoder.places["day"][0]].max()
    assert not any("no date" in note for note in rows.learned)


def test_rows_of_one_time_are_on_one_side_and_rows_without_a_time_on_none():
    frame = series().assign(year=np.repeat([2020.0, 2021, 2022, np.nan, 2023], 10))
    rows = divided(frame, last=0.3, time="year")
    assert rows.held_out is not None
    assert set(rows.held_out["year"]) == {2022, 2023} and set(rows.train["year"]) == {2020, 2021}
    assert len(rows.whole) == N and any("10 rows without a time in 'year'" in note for note in rows.notes)
    rows = divided(frame, start="2023", time="year")
    assert rows.held_out is not None and set(rows.held_out["year"]) == {2023}


@pytest.mark.parametrize(
    "how, message",
    [
        ({"last": 1.0}, "--test-last must lie between 0 and 1"),
        ({"last": 0.1, "start": "2024-01-01"}, "--test-from and --test-last are ways to hold rows out"),
        ({"time": "day"}, "--time names the column for"),
        ({"start": "soon"}, "--test-from 'soon' is no date, which the column 'day' holds"),
        ({"start": "2030-01-01"}, "no row lies from the time"),
        ({"start": "2020-01-01"}, "no row lies before the time"),
        ({"last": 0.1, "time": "town"}, "column 'town' holds no dates and no numbers"),
        ({"last": 0.1, "time": "when"}, "no column 'when' beside the target"),
    ],
)
def test_times_that_divide_nothing_are_refused(how, message):
    with pytest.raises(ValueError, match=message):
        divided(**how)


def test_the_column_of_the_time_has_to_be_named_where_it_is_not_the_only_one():
    for frame, message in (
        (series().drop(columns="day"), "no column of dates: name the column of the time by --time"),
        (series().assign(end=lambda t: t["day"]), "dates in 'day', 'end': name"),
    ):
        with pytest.raises(TableError, match=message):
            divided(frame, last=0.1)


def test_the_model_is_fitted_to_all_rows_after_measuring(folder):
    with_all = fit_table(folder / "t.csv", "y", out=folder / "all", test_last=0.2, **QUICK)
    without = fit_table(folder / "t.csv", "y", out=folder / "part", test_last=0.2, refit=False, **QUICK)
    assert with_all["refitted"] and not without["refitted"]
    assert with_all["test"] == without["test"] and with_all["test"]["rows"] == 10
    assert (with_all["rows"], without["rows"]) == (50, 40)
    assert inspect_model(folder / "all")["rows"] == 50
    assert "town=new" in with_all["features"] and "town=new" not in without["features"]
    whole = fit_table(folder / "t.csv", "y", out=folder / "whole", test_fraction=0.0, **QUICK)
    frame = series().drop(columns="y")
    same = [GPRegressor.load(folder / name).predict(frame) for name in ("all", "whole")]
    np.testing.assert_array_equal(*same)
    assert not whole["refitted"] and whole["test"] is None


def test_a_column_of_weights_counts_rows_and_is_no_input(folder):
    result = fit_table(folder / "t.csv", "y", out=folder / "w", weights="often", test_fraction=0.0, **QUICK)
    assert "often" not in result["features"]
    frame = series()
    X = frame.drop(columns=["y", "often"])
    expected = GPRegressor(**QUICK).fit(X, frame["y"], frame["often"]).predict(X)
    np.testing.assert_array_equal(GPRegressor.load(folder / "w").predict(frame), expected)
    frame.assign(often=np.where(np.arange(N) == 4, -1.0, 1.0)).to_csv(folder / "bad.csv", index=False)
    with pytest.raises(TableError, match="the weights 'often' hold -1 in row 5; a weight is at least 0"):
        fit_table(folder / "bad.csv", "y", weights="often", **QUICK)


def test_the_command_line_has_these_options(folder):
    words = ["fit", str(folder / "t.csv"), "--target", "y", "--effort", "fast", "--max-iter", "2", "--test-last", "0.2"]
    done = CliRunner().invoke(app, [*words, "--weights", "often", "--method", "exact"])
    assert done.exit_code == 0, done.output
    assert "test rows: 10" in done.stdout and "then: fitted to all rows" in done.stdout
    done = CliRunner().invoke(app, [*words, "--no-refit", "--method", "exact", "--time", "day"])
    assert done.exit_code == 0 and "then:" not in done.stdout and "data: 40 training rows" in done.stdout


def test_intervals_below_zero_of_a_target_that_is_not_are_said_and_the_remedy_works(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 6, 200)
    pd.DataFrame({"x": x, "price": np.exp(np.sin(x) + rng.normal(size=200))}).to_csv(tmp_path / "t.csv", index=False)
    said = lambda **settings: [
        note for note in fit_table(tmp_path / "t.csv", "price", refit=False, **settings)["notes"] if "below" in note
    ]
    (note,) = said(**QUICK)
    assert "of 20 measured rows reach there: --target-warp log" in note
    assert not said(target_warp="log", kernel="rbf", input_warp="none")
