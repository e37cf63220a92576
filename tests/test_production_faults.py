"""Faults that a reader found who put models into production: ends of intervals, rows that come again, files that are
lost, and settings that change between fits."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.integrate import quad

from pseudopoint import GPClassifier, GPRegressor, commands
from pseudopoint.starts.hyperparameters import KERNELS
from pseudopoint.tables import TableError

pytestmark = pytest.mark.edge
rng = np.random.default_rng(0)
X = rng.uniform(-3, 3, (90, 1))
Y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=90)
QUICK: dict[str, Any] = {"effort": "fast", "max_iter": 5, "num_inducing": 10}


@pytest.mark.parametrize("likelihood", ["laplace", "heteroscedastic"])
@pytest.mark.parametrize("level", [0.9, 1 - 1e-9, 1 - 1e-12])
def test_ends_of_intervals_leave_out_what_they_should(likelihood, level):
    model = GPRegressor(likelihood=likelihood, **QUICK).fit(X, Y)
    at = X[:1]
    (mean,), (std,) = model.predict(at, return_std=True)
    low, high = model.predict_interval(at, level)[0]
    above = quad(lambda y: float(np.exp(model.log_density(at, [y])[0])), high, high + 20 * std, limit=200)[0]
    np.testing.assert_allclose(above, 0.5 - 0.5 * level, rtol=0.01)
    np.testing.assert_allclose(high - mean, mean - low, rtol=1e-6)


@pytest.mark.parametrize("classes", [False, True])
def test_a_row_may_come_as_often_as_it_likes(classes):
    days = np.linspace(0, 9, 40)[:, None]
    counts = np.random.default_rng(1).poisson(np.exp(np.sin(days[:, 0])))
    model: Any = GPClassifier if classes else GPRegressor
    model = model(method="laplace", effort="fast", max_iter=20, **({} if classes else {"likelihood": "poisson"}))
    model.fit(days, counts > 0 if classes else counts)
    found = [np.ravel(model.update(days[7:8], [1]).predict_latent(days[7:8]))[0] for _ in range(6)]
    assert np.isfinite(found).all()
    assert np.all(np.diff(found) > 0) if classes else np.all(np.abs(np.diff(found)) > 0)


def test_a_table_that_is_read_is_not_written_over(tmp_path):
    table = pd.DataFrame({"x": X[:, 0], "y": Y})
    folder = tmp_path / "parts"
    folder.mkdir()
    file, other, part = tmp_path / "t.csv", tmp_path / "new.csv", folder / "a.csv"
    for path in (file, other, part):
        table.to_csv(path, index=False)
    (tmp_path / "link.csv").symlink_to(file)
    before, model = file.read_bytes(), tmp_path / "m.st"
    lost = "is a table that is read here"
    for out in (file, tmp_path / "link.csv"):
        with pytest.raises(TableError, match=lost):
            commands.fit_table(file, "y", out=out, **QUICK)
    with pytest.raises(TableError, match=lost):
        commands.fit_table(file, "y", report=other, test=other, **QUICK)
    for source in (folder, folder / "*.csv"):
        with pytest.raises(TableError, match=lost):
            commands.fit_table(source, "y", out=part, stream=True, **QUICK)
    with pytest.raises(TableError, match="is named for two files"):
        commands.fit_table(file, "y", out=tmp_path / "one", report=tmp_path / "one", **QUICK)
    assert not model.exists() and not (tmp_path / "one").exists()
    commands.fit_table(file, "y", out=model, **QUICK)
    for out in (file, model):
        with pytest.raises(TableError, match=lost):
            commands.predict_table(model, file, out)
    with pytest.raises(TableError, match=lost):
        commands.update_table(model, file, file)
    assert file.read_bytes() == before == other.read_bytes() == part.read_bytes()
    commands.update_table(model, file, model)  # as documented


def test_one_weight_for_all_rows_is_allowed():
    plain, weighted = (GPRegressor(**QUICK).fit(X, Y, sample_weight=w) for w in (np.full(90, 2.0), 2.0))
    np.testing.assert_array_equal(plain.predict(X), weighted.predict(X))


@pytest.mark.parametrize("change", [{"kernel": "rbf"}, {"likelihood": "student_t"}])
def test_a_fit_with_another_kernel_or_likelihood_begins_anew(change):
    model = GPRegressor(warm_start=True, **QUICK).fit(X, Y)
    assert not any("began anew" in note for note in model.fit(X, Y).notes_)
    model.set_params(**change).fit(X, Y)
    plain = GPRegressor(**QUICK | change).fit(X, Y)
    np.testing.assert_allclose(model.predict(X), plain.predict(X), rtol=1e-9)
    assert any("began anew" in note and "asked for now" in note for note in model.notes_)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_fit_with_the_same_kernel_does_not_begin_anew(kernel):
    x = np.column_stack([X, np.arange(len(X)) % 2 == 0])
    model = GPRegressor(kernel, warm_start=True, **QUICK).fit(x, Y)
    model.set_params(likelihood="gaussian").fit(x, Y)
    assert not any("began anew" in note for note in model.notes_)
    if kernel != "matern52":
        model.set_params(kernel="matern52").fit(x, Y)
        assert any("began anew" in note for note in model.notes_)
