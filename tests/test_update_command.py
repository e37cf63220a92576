"""`pseudopoint update`: a model file given the rows of another table."""

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from pseudopoint import GPClassifier, GPRegressor
from pseudopoint.cli import app
from pseudopoint.commands import fit_table, inspect_model, steps, update, update_table
from pseudopoint.tables import TableError

pytestmark = pytest.mark.edge
FAST: dict[str, Any] = {"effort": "fast", "max_iter": 3, "initial": "robust"}


def table(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"x": rng.normal(size=rows), "town": rng.choice(["a", "b"], rows)})
    frame["often"] = rng.integers(1, 4, rows).astype(float)
    frame["y"] = np.sin(2 * frame["x"]) + (frame["town"] == "a") + 0.1 * rng.normal(size=rows)
    frame["label"] = np.where(frame["y"] > 0.5, "high", "low")
    frame["count"] = rng.poisson(np.exp(frame["y"]))
    return frame


OLD, NEW = table(60, 0), table(45, 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("update")
    OLD.to_csv(folder / "old.csv", index=False)
    NEW.to_parquet(folder / "new.parquet")
    given: dict[str, Any] = {"test_fraction": 0.0, **FAST}
    of_y = OLD.drop(columns=["label", "count", "often"])
    of_y.to_csv(folder / "y.csv", index=False)
    fit_table(folder / "y.csv", "y", method="collapsed", num_inducing=8, out=folder / "model", **given)
    OLD.drop(columns=["y", "count", "often"]).to_csv(folder / "label.csv", index=False)
    fit_table(folder / "label.csv", "label", num_inducing=8, out=folder / "classes", **given)
    OLD[["x", "count", "often"]].to_csv(folder / "count.csv", index=False)
    counts = {"likelihood": "poisson", "exposure": "often", "method": "svgp", "num_inducing": 8}
    fit_table(folder / "count.csv", "count", out=folder / "counts", **given | counts)
    return folder


def encoded(folder, name: str, frame: pd.DataFrame):
    kind, _ = steps.load_model(folder / name)
    return kind, kind.encoder.encode(frame)[0]


@pytest.mark.parametrize("chunk", [20_000, 17])
def test_the_command_is_update_in_python_whatever_the_parts(folder, tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(update, "CHUNK_ROWS", chunk)
    before = inspect_model(folder / "model")
    result = update_table(folder / "model", folder / "new.parquet", tmp_path / "new", weights="often")
    kind, X = encoded(folder, "model", NEW)
    model = kind.model.update(X, NEW["y"].to_numpy(), NEW["often"].to_numpy())
    kind, _ = steps.load_model(tmp_path / "new")
    np.testing.assert_allclose(kind.model.predict(X), model.predict(X), rtol=1e-8, atol=1e-9)
    assert result["rows"] == inspect_model(tmp_path / "new")["rows"] == 105
    assert result["bound"] == pytest.approx(model.bound_, abs=1e-7)
    assert kind.model.notes_.count(model.notes_[-1]) == 1
    after = inspect_model(folder / "model")
    assert after == before


@pytest.mark.parametrize(("name", "target"), [("classes", "label"), ("counts", "count")])
def test_classes_and_counts_with_exposure_are_updated(folder, tmp_path, name, target):
    update_table(folder / name, folder / "new.parquet", tmp_path / "new")
    kind, X = encoded(folder, name, NEW)
    exposure = {} if name == "classes" else {"exposure": NEW["often"].to_numpy()}
    kind.model.update(X, NEW[target].to_numpy(), **exposure)
    new = (GPClassifier if name == "classes" else GPRegressor).load(tmp_path / "new")
    predict = lambda model: model.predict_proba(X) if name == "classes" else model.predict(X, **exposure)
    np.testing.assert_allclose(predict(new), predict(kind.model), rtol=1e-8)


def test_rows_without_a_target_are_left_out_and_said(folder, tmp_path):
    NEW.assign(y=NEW["y"].where(NEW["x"] > 0)).to_csv(tmp_path / "t.csv", index=False)
    result = update_table(folder / "model", tmp_path / "t.csv", tmp_path / "new", new_inducing=2)
    there = int(np.sum(NEW["x"].to_numpy() > 0))
    assert result["new_rows"] == there and result["num_inducing"] == 10
    assert f"{45 - there} rows without a target were left out" in result["notes"]


@pytest.mark.parametrize("zero", [slice(0, 17), slice(17, 34), slice(34, 45)])
def test_a_chunk_whose_rows_were_never_seen_adds_nothing(folder, tmp_path, monkeypatch, zero):
    frame = NEW.copy()
    frame.iloc[zero, frame.columns.get_loc("often")] = 0.0
    frame.to_parquet(tmp_path / "t.parquet")
    made = []
    for name, chunk in (("parts", 17), ("whole", 20_000)):
        monkeypatch.setattr(update, "CHUNK_ROWS", chunk)
        given: dict[str, Any] = {"weights": "often", "new_inducing": 2}
        result = update_table(folder / "model", tmp_path / "t.parquet", tmp_path / name, **given)
        made.append((result["rows"], result["new_rows"], result["num_inducing"]))
    assert made[0] == made[1] == (105, 45, 10)
    monkeypatch.setattr(update, "CHUNK_ROWS", 17)
    update_table(folder / "model", tmp_path / "t.parquet", tmp_path / "parts", weights="often")
    kind, X = encoded(folder, "model", frame)
    model = kind.model.update(X, frame["y"].to_numpy(), frame["often"].to_numpy())
    kind, _ = steps.load_model(tmp_path / "parts")
    np.testing.assert_allclose(kind.model.predict(X), model.predict(X), rtol=1e-8, atol=1e-9)


def test_a_model_file_may_be_replaced_and_stays_where_the_update_fails(folder, tmp_path):
    model = tmp_path / "model"
    model.write_bytes((folder / "model").read_bytes())
    arguments = ["update", str(model), str(folder / "new.parquet"), "--out", str(model), "--json"]
    run = CliRunner().invoke(app, arguments)
    assert run.exit_code == 0 and json.loads(run.stdout)["new_rows"] == 45
    kept = model.read_bytes()
    NEW.assign(y="high").to_csv(tmp_path / "bad.csv", index=False)
    with pytest.raises(TableError, match="'y'"):
        update_table(model, tmp_path / "bad.csv", model)
    assert model.read_bytes() == kept


@pytest.mark.parametrize(
    ("name", "change", "more", "message"),
    [
        ("model", {"y": np.nan}, {}, "no row has a target 'y'"),
        ("model", {"often": -1.0}, {"weights": "often"}, "the weights 'often' hold -1 in row 1"),
        ("model", {"often": 0.0}, {"weights": "often"}, "the weights 'often' are zero in every row with a target"),
        ("model", {}, {"weights": "y"}, "is the target"),
        ("classes", {"label": "middling"}, {}, "'label' holds 'middling' in row 1, which the fit did not see"),
        ("counts", {"often": 0.0}, {}, "often"),
    ],
)
def test_what_cannot_be_is_one_sentence(folder, tmp_path, name, change, more, message):
    NEW.assign(**change).to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(ValueError, match=message):
        update_table(folder / name, tmp_path / "t.csv", tmp_path / "new", **more)
    assert not (tmp_path / "new").exists()
