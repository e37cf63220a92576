"""The commands without a terminal: what a target is taken for, rows that cannot be scored, and round trips of files."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pseudopoint import GPClassifier, GPRegressor, metrics
from pseudopoint import commands as tasks
from pseudopoint.cli import _plain
from pseudopoint.commands.held_out import split

pytestmark = pytest.mark.edge

QUICK = {"max_iter": 3, "num_inducing": 5, "kernel": "rbf", "effort": "fast"}
ROWS = 48
SIZE = np.sin(7.0 * np.arange(ROWS))  # no pattern, no chance


def written(folder: Path, y, name: str = "train.csv") -> Path:
    """A table with one input that tells the target, as far as it can be told."""
    table = pd.DataFrame({"size": SIZE[: len(y)], "y": y})
    path = folder / name
    (table.to_parquet if path.suffix == ".parquet" else lambda path: table.to_csv(path, index=False))(path)
    return path


def large(no, yes) -> list:
    """`yes` where the input is large, but not in every such row."""
    return [yes if x > 0.1 or i % 11 == 0 else no for i, x in enumerate(SIZE)]


def lines_of(result) -> str:
    return "\n".join(f"{label}: {text}" for label, text in tasks.in_lines(result))


def as_json(result) -> dict:
    """As `--json` prints it; a value that JSON has not is an error."""
    return json.loads(json.dumps(_plain(result), allow_nan=False))


# --- Which rows are held out ---


def test_every_class_has_its_share_on_both_sides_and_a_class_of_one_row_is_trained_on():
    labels = np.array(["a"] * 80 + ["b"] * 19 + ["alone"])
    frame = pd.DataFrame({"y": labels, "row": range(100)})
    train, held_out = split(frame, 0.2, 0, labels)
    assert held_out.y.value_counts().to_dict() == {"a": 16, "b": 4} and len(train) == 80
    assert sorted([*train.row, *held_out.row]) == list(range(100))
    others = [set(split(frame, 0.2, seed, labels)[1].row) for seed in (0, 1)]
    assert others[0] == set(held_out.row) != others[1]


# --- Which task ---


@pytest.mark.parametrize(
    ("file", "labels", "classes", "why"),
    [
        ("t.csv", large("no", "yes"), ["no", "yes"], "holds text ('"),
        ("t.csv", large(False, True), ["False", "True"], "holds true/false values"),
        ("t.parquet", large(False, True), ["False", "True"], "holds true/false values"),
        ("t.csv", large(0, 1), ["0", "1"], "two different numbers, 0 and 1; --task regression"),
        ("t.csv", large("01", "02"), ["01", "02"], "two different numbers, 1 and 2"),
    ],
    ids=["text", "booleans", "booleans in Parquet", "0 and 1", "zeros before"],
)
def test_a_target_of_classes_is_recognised_and_the_reason_is_said(tmp_path, file, labels, classes, why):
    result = tasks.fit_table(written(tmp_path, labels, file), "y", out=tmp_path / "m", **QUICK)
    assert result["task"] == "classification" and result["classes"] == classes
    assert why in result["task_reason"] and "task: classification — the target 'y'" in lines_of(result)
    assert result["rows"] == ROWS and result["test"]["rows"] == 5
    scored = tasks.score_table(tmp_path / "m", tmp_path / file)
    assert scored["rows"] == ROWS and scored["accuracy"] >= scored["majority_accuracy"]


def test_numbers_are_a_regression_and_codes_of_classes_get_a_hint(tmp_path):
    codes = (np.arange(ROWS) % 3).tolist()
    result = tasks.fit_table(written(tmp_path, codes), "y", **QUICK)
    assert result["task"] == "regression" and "holds 3 different numbers; --task classification" in lines_of(result)
    result = tasks.fit_table(tmp_path / "train.csv", "y", task="classification", **QUICK)
    assert result["classes"] == ["0", "1", "2"] and result["likelihood"] == "Softmax"
    assert result["task_reason"] == "chosen by the user"
    result = tasks.fit_table(written(tmp_path, SIZE**2), "y", **QUICK)
    assert result["task_reason"] == "the target 'y' holds 48 different numbers"


def test_a_likelihood_implies_the_task(tmp_path):
    table = written(tmp_path, large(0, 1))
    assert tasks.fit_table(table, "y", likelihood="gaussian", **QUICK)["task"] == "regression"
    result = tasks.fit_table(table, "y", likelihood="probit", method="laplace", **QUICK)
    assert result["task"] == "classification" and result["likelihood_parameters"] == {"link": "probit"}
    assert "'probit' is for it" in result["task_reason"]
    assert "log evidence: -" in lines_of(result) and "which is no bound" in lines_of(result)


@pytest.mark.parametrize(
    ("y", "options", "sentence"),
    [
        (large("no", "yes"), {"task": "regression"}, "not numeric"),
        (large("no", "yes"), {"likelihood": "poisson"}, "not numeric"),
        (large(False, True), {"task": "regression"}, "holds true/false values, not numbers"),
        (large(0, 1), {"task": "regression", "likelihood": "softmax"}, "'softmax' is for classification, not regr"),
        (large(0, 1), {"task": "classification", "likelihood": "beta"}, "'beta' is for regression, not classifi"),
        (large(0, 1), {"task": "sorting"}, "'sorting' is unknown: use one of auto, regression, classification"),
        (large(0, 1), {"likelihood": "cauchy"}, "'cauchy' is unknown: use one of auto, logit"),
        (large(0, 1), {"method": "exact"}, "needs a Gaussian likelihood"),
        ((np.arange(ROWS) % 3).tolist(), {"likelihood": "probit"}, "for two classes, but the target has 3"),
        ([None] * ROWS, {"task": "classification"}, "missing in every row"),
        ([2.0] * (ROWS - 1) + [-1.0], {"likelihood": "poisson"}, "holds -1 in row 48 .*counts"),
        ([None, 0.5, 1.5] * (ROWS // 3), {"likelihood": "beta"}, "holds 1.5 in row 3 .*proportions"),
    ],
)
def test_a_target_that_does_not_fit_is_one_sentence(tmp_path, y, options, sentence):
    with pytest.raises(ValueError, match=sentence) as error:
        tasks.fit_table(written(tmp_path, y), "y", **QUICK | options)
    assert "\n" not in str(error.value)


# --- Classification, from a table to a table ---


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """Three classes, rows without a label, and a class that only the test table has."""
    folder = tmp_path_factory.mktemp("classes")
    y: list[str | None] = ["low" if x < -0.4 else "high, or so" if x > 0.4 else "mid" for x in SIZE]
    y[3], y[4] = None, " "
    written(folder, y)
    written(folder, [*y[:20], "alien", "alien", "low"], "test.csv")
    options = {"test": folder / "test.csv", "out": folder / "m.safetensors", "report": folder / "r.html"}
    return folder, tasks.fit_table(folder / "train.csv", "y", **options, **QUICK)


def test_labels_that_training_never_had_are_counted_and_not_measured(fitted):
    folder, result = fitted
    assert result["rows"] == 46 and result["test"]["rows"] == 19  # 18 with a label of the first 20, and the last
    assert "2 rows were dropped because their target 'y' is missing" in result["notes"]
    assert "2 test rows were dropped because their target is missing" in result["notes"]
    said = "2 rows whose target training never had ('alien') could not be scored"
    assert said in result["notes"]
    scored = tasks.score_table(folder / "m.safetensors", folder / "test.csv")
    assert scored["rows"] == 19 and said in scored["notes"]
    assert "2 rows without a target were not scored" in scored["notes"]
    for name in ("accuracy", "log_density", "brier", "calibration_error"):
        assert scored[name] == pytest.approx(result["test"][name])


def test_nothing_to_score_is_an_error_that_says_why(fitted):
    folder, _ = fitted
    strange = written(folder, ["alien"] * 5, "strange.csv")
    with pytest.raises(ValueError, match=r"no row has a target 'y' to score \(5 rows whose target training never had"):
        tasks.score_table(folder / "m.safetensors", strange)
    result = tasks.fit_table(folder / "train.csv", "y", test=strange, **QUICK)
    assert result["test"] is None and any("'alien'" in note for note in result["notes"])
    assert "accuracy" not in lines_of(result)


def test_probabilities_are_written_one_column_a_class(fitted, monkeypatch):
    folder, _ = fitted
    monkeypatch.setattr("pseudopoint.commands.steps.CHUNK_ROWS", 20)
    for suffix in ("csv", "parquet"):
        done = tasks.predict_table(folder / "m.safetensors", folder / "train.csv", folder / f"p.{suffix}")
        assert done["columns"] == ["y_predicted", "y_p_high, or so", "y_p_low", "y_p_mid"] and done["rows"] == ROWS
    frame = pd.read_csv(folder / "p.csv")
    pd.testing.assert_frame_equal(frame, pd.read_parquet(folder / "p.parquet"), check_dtype=False)
    model, extra = GPClassifier.load_with_extra(folder / "m.safetensors")
    assert extra["encoder"]["classes"] is True
    P = model.predict_proba(SIZE[:, None])
    np.testing.assert_allclose(frame.iloc[:, 1:], P, rtol=1e-9)
    assert frame["y_predicted"].tolist() == model.predict(SIZE[:, None]).tolist()


def test_measures_are_those_of_the_probabilities(fitted):
    folder, _ = fitted
    scored = tasks.score_table(folder / "m.safetensors", folder / "train.csv")
    model = GPClassifier.load(folder / "m.safetensors")
    y = pd.read_csv(folder / "train.csv")["y"].str.strip().replace("", None)
    known = y.notna().to_numpy()
    P, codes = model.predict_proba(SIZE[known, None]), np.searchsorted(model.classes_, y[known].to_numpy(str))
    assert scored["accuracy"] == metrics.accuracy(codes, P)
    assert scored["log_density"] == pytest.approx(metrics.mean_log_probability(codes, P))
    assert scored["brier"] == pytest.approx(metrics.brier(codes, P))
    assert scored["calibration_error"] == pytest.approx(metrics.calibration_error(codes, P))
    count = np.bincount(codes)
    assert scored["majority_accuracy"] == count.max() / count.sum()
    assert f"(always {scored['majority_class']!r} would have " in lines_of(scored)


def test_a_model_of_classes_says_what_it_is_and_no_infinity(fitted):
    folder, result = fitted
    inspected = tasks.inspect_model(folder / "m.safetensors")
    assert inspected["kind"] == "GPClassifier" and inspected["classes"] == ["high, or so", "low", "mid"]
    assert "classes: 3: 'high, or so', 'low', 'mid'" in lines_of(inspected)
    assert "likelihood: Softmax" in lines_of(inspected) and "noise" not in lines_of(inspected)
    for each in (result, inspected):
        assert each["upper_bound"] is None and each["noise_std"] is None
        assert as_json(each) == each, "no number that JSON has not"
        assert "inf" not in lines_of(each).replace("inducing", "")
    assert "of the variance of the latent function" in result["advice"] and "enough" in result["advice"]
    page = (folder / "r.html").read_text()
    assert "Reliability" in page and "Confusion" in page and "high, or so" in page


# --- Regression with other likelihoods ---


@pytest.fixture(scope="module")
def counts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("counts")
    written(folder, np.round(3 + 3 * SIZE).tolist())
    options = {"likelihood": "negative_binomial", "test_fraction": 0.05, "report": folder / "r.html"}
    return folder, tasks.fit_table(folder / "train.csv", "y", out=folder / "m", **options, **QUICK)


def test_counts_are_measured_in_their_own_units(counts):
    folder, result = counts
    test = result["test"]
    assert test["rows"] == 3 and test["log_density_standardised"] is None and test["log_density"] < 0
    assert "with the target standardised" not in lines_of(result)
    assert result["upper_bound"] is None and result["bound_vfe"] is None and as_json(result) == result
    page = (folder / "r.html").read_text()
    assert "Predicted against actual" in page and "residuals" not in page and "Calibration" not in page


def test_a_likelihood_says_its_numbers(counts):
    folder, _ = counts
    inspected = tasks.inspect_model(folder / "m")
    assert set(inspected["likelihood_parameters"]) == {"scale", "shape"} and inspected["noise_std"] is None
    assert "likelihood: NegativeBinomial, scale " in lines_of(inspected) and ", shape " in lines_of(inspected)


def test_intervals_of_counts_are_whole_numbers(counts):
    folder, _ = counts
    written(folder, [1, 2, 0], "few.csv")
    tasks.predict_table(folder / "m", folder / "few.csv", folder / "p.csv", 0.8)
    frame = pd.read_csv(folder / "p.csv")
    assert list(frame) == ["y_mean", "y_std", "y_lower_80", "y_upper_80"]
    ends = frame[["y_lower_80", "y_upper_80"]].to_numpy()
    assert (ends >= 0).all() and (ends % 1 == 0).all()
    written(folder, [1, 2.5], "wrong.csv")
    with pytest.raises(ValueError, match=r"holds 2\.5 in row 2"):
        tasks.score_table(folder / "m", folder / "wrong.csv")


def test_a_level_that_training_never_had_is_counted(tmp_path):
    table = written(tmp_path, np.round(2 + 1.4 * SIZE).tolist())
    test = written(tmp_path, [1.0, 2.0, 3.0, 7.0, 1.5], "test.csv")
    result = tasks.fit_table(table, "y", likelihood="ordinal", test=test, **QUICK)
    assert result["test"]["rows"] == 3
    assert "2 rows whose target training never had ('7', '1.5') could not be scored" in result["notes"]


def test_a_gaussian_is_measured_as_ever(tmp_path):
    table = written(tmp_path, 100 + 20 * SIZE**2)
    result = tasks.fit_table(table, "y", out=tmp_path / "m", report=tmp_path / "r.html", **QUICK)
    model = GPRegressor.load(tmp_path / "m")
    y = pd.read_csv(table)["y"].to_numpy()
    mean, std = model.predict(SIZE[:, None], return_std=True)
    scored = tasks.score_table(tmp_path / "m", table, 0.8)
    assert scored["log_density"] == pytest.approx(metrics.mean_log_density(y, mean, std), rel=1e-9)
    assert scored["coverage"] == metrics.coverage(y, *metrics.interval(mean, std, 0.8))
    assert scored["log_density_standardised"] == pytest.approx(scored["log_density"] + np.log(result["target_scale"]))
    assert result["upper_bound"] is not None and "noise: standard deviation" in lines_of(
        tasks.inspect_model(tmp_path / "m")
    )
    page = (tmp_path / "r.html").read_text()
    assert "Standardised residuals" in page and "Calibration" in page
