"""A fit that was stopped at any moment goes on from its checkpoint, minibatch steps bit for bit; other fits do not."""

import shutil
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest

from pseudopoint import FitError, GPClassifier, GPRegressor, ModelFileError
from pseudopoint.estimators import checkpoints

pytestmark = pytest.mark.edge

N = 120
rng = np.random.default_rng(2)
X = rng.normal(size=(N, 2))
TABLE = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": np.sin(2 * X[:, 0]) + 0.2 * rng.normal(size=N)})
LABELS = TABLE.assign(y=np.where(TABLE.y > 0, "up", "down"))
COMMON: dict[str, Any] = {"effort": "fast", "num_inducing": 4, "inducing": "kmeans", "initial": "robust"}
SVGP = COMMON | {"method": "svgp", "batch_size": 16, "max_iter": 90}


class Stopped(Exception):
    """In place of a power cut."""


def learned(model):
    """All that predicts."""
    return [model.bound_, *map(np.asarray, jax.tree.leaves((model.predictor_, model.kernel_)))]


def same(a, b):
    for x, y in zip(learned(a), learned(b), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.fixture(scope="module")
def whole():
    return GPRegressor(**SVGP).fit(TABLE, "y")


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr("pseudopoint.estimators.checkpoints.EVERY", 0.0)


def test_minibatches_go_on_bit_for_bit_from_every_moment(tmp_path, whole, at_once):
    folder, copies = tmp_path / "fit", []

    def copy(record):
        copies.append(tmp_path / f"copy{record.step}")
        shutil.copytree(folder, copies[-1])

    model = GPRegressor(**SVGP).fit(TABLE, "y", checkpoint=folder, progress=copy)
    same(model, whole)
    assert len(copies) >= 2
    for each in copies:
        again = GPRegressor(**SVGP).fit(TABLE, "y", checkpoint=each, resume=True)
        same(again, whole)
        np.testing.assert_array_equal(again.history_["bound"], whole.history_["bound"])


def test_an_interrupt_leaves_a_checkpoint_though_no_minute_has_gone(tmp_path, whole):
    def stop(record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        GPRegressor(**SVGP).fit(TABLE, "y", checkpoint=tmp_path, progress=stop)
    assert (tmp_path / "steps.safetensors").exists()
    seen = []
    same(GPRegressor(**SVGP).fit(TABLE, "y", checkpoint=tmp_path, resume=True, progress=seen.append), whole)
    assert seen[0].step > whole.history_["step"][0]  # the first segment was not made again


def test_steps_that_end_when_the_bound_is_flat_go_on_too(tmp_path, monkeypatch, at_once):
    monkeypatch.setattr("pseudopoint.recipes.families.MORE_STEPS", 250)
    settings = COMMON | {"method": "svgp", "batch_size": 16}
    stops = iter([3, 7])

    def stop_at(count):
        def progress(record):
            nonlocal count
            count -= 1
            if count == 0:
                raise Stopped

        return progress

    whole = GPClassifier(**settings).fit(LABELS, "y")
    for count in stops:
        with pytest.raises(Stopped):
            GPClassifier(**settings).fit(LABELS, "y", checkpoint=tmp_path, resume=True, progress=stop_at(count))
    same(GPClassifier(**settings).fit(LABELS, "y", checkpoint=tmp_path, resume=True), whole)


def test_full_passes_go_on_from_the_best_point(tmp_path, at_once):
    settings = COMMON | {"method": "collapsed", "max_iter": 12}
    records = []

    def stop(record):
        records.append(record)
        if len(records) == 5:
            raise Stopped

    with pytest.raises(Stopped):
        GPRegressor(**settings).fit(TABLE, "y", checkpoint=tmp_path, progress=stop)
    model = GPRegressor(**settings).fit(TABLE, "y", checkpoint=tmp_path, resume=True)
    assert model.history_["bound"][:5].tolist() == [record.bound for record in records]
    assert len(model.history_["bound"]) > 5 and model.history_["bound"][5] >= records[-1].bound
    again = GPRegressor(**settings).fit(TABLE, "y", checkpoint=tmp_path, resume=True)  # all is done
    np.testing.assert_allclose(again.bound_, model.bound_, rtol=1e-10)


def test_a_search_is_not_made_again(tmp_path, at_once, monkeypatch):
    settings = SVGP | {"effort": "balanced", "max_iter": 30, "input_warp": "none", "target_warp": "none"}
    model = GPRegressor(**settings).fit(TABLE, "y", checkpoint=tmp_path)

    def never(*given):
        raise AssertionError("the search was made again")

    monkeypatch.setattr("pseudopoint.estimators.streaming.searched", never)
    again = GPRegressor(**settings).fit(TABLE, "y", checkpoint=tmp_path, resume=True)
    same(again, model)
    assert again.selection_["choice"] == model.selection_["choice"]
    # All rows are not fitted exactly, so that no kernel of products is tried.
    assert "additive" in model.selection_["choice"] and "orthogonal_additive" not in model.selection_["choice"]


def test_a_saved_model_takes_the_columns_of_the_table(tmp_path, whole):
    whole.save(tmp_path / "model")
    again, rows = GPRegressor.load(tmp_path / "model"), TABLE.drop(columns="y").assign(other="text")
    np.testing.assert_array_equal(again.predict(rows), whole.predict(TABLE[["a", "b"]]))
    assert again.rows_ == N and again.encoder_ == whole.encoder_
    with pytest.raises(ValueError, match="no column 'b'"):
        again.predict(rows[["a"]])


# --- What is refused -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kept(tmp_path_factory, whole):
    folder = tmp_path_factory.mktemp("kept")
    GPRegressor(**SVGP).fit(TABLE, "y", checkpoint=folder)
    return folder


def refused(word, table=TABLE, error: type[Exception] = ValueError, target="y", resume=True, folder=None, **settings):
    with pytest.raises(error, match=word) as caught:
        GPRegressor(**SVGP | settings).fit(table, target, checkpoint=folder, resume=resume)
    assert "\n" not in str(caught.value)


def test_a_checkpoint_of_another_fit_is_refused(kept):
    refused("is of a fit with kernel='auto', not 'rbf'", folder=kept, kernel="rbf")
    refused("is of a fit with max_iter=90, not 91", folder=kept, max_iter=91)
    refused("is of a fit to other data", folder=kept, table=TABLE.assign(a=TABLE.a * 2))
    refused("is of a fit to other data", folder=kept, table=TABLE.iloc[1:])
    refused("is of a fit to other data", folder=kept, target="a")
    refused("holds the checkpoint of a fit", folder=kept, resume=False)
    refused("name the folder of its checkpoint")


def test_rows_that_were_exchanged_are_other_data_though_all_moments_are_equal(tmp_path):
    """A label's counts, and a target's moments, do not say which row has which."""
    halves = TABLE.assign(y=np.where(TABLE.y.rank() > N / 2, "up", "down"))
    settings: dict[str, Any] = COMMON | {"method": "svgp", "max_iter": 20}
    swapped = halves.assign(y=halves.y.map({"up": "down", "down": "up"}))
    GPClassifier(**settings).fit(swapped, "y", checkpoint=tmp_path / "labels")
    with pytest.raises(ValueError, match="is of a fit to other data"):
        GPClassifier(**settings).fit(halves, "y", checkpoint=tmp_path / "labels", resume=True)
    rounded = TABLE.round(0)
    GPRegressor(**SVGP).fit(rounded, "y", checkpoint=tmp_path / "numbers")
    refused(
        "is of a fit to other data", folder=tmp_path / "numbers", table=rounded.assign(y=rounded.y[::-1].to_numpy())
    )
    refused(
        "is of a fit to other data", folder=tmp_path / "numbers", table=rounded.assign(a=rounded.a[::-1].to_numpy())
    )


def test_the_same_rows_in_another_order_or_other_parts_are_the_same_data(tmp_path, whole):
    frames = pytest.importorskip("dask.dataframe")
    GPRegressor(**SVGP).fit(TABLE, "y", checkpoint=tmp_path)
    other: Any = frames.from_pandas(TABLE.sample(frac=1, random_state=0, ignore_index=True), npartitions=3)
    again = GPRegressor(**SVGP).fit(other, "y", checkpoint=tmp_path, resume=True)
    np.testing.assert_allclose(again.bound_, whole.bound_, rtol=1e-9)


def test_files_without_their_identity_are_refused(kept, tmp_path):
    folder = tmp_path / "kept"
    shutil.copytree(kept, folder)
    (folder / "identity.json").unlink()
    for resume in (False, True):
        refused("no identity.json, which says of what fit: delete it", folder=folder, resume=resume)


def test_another_task_is_refused_before_its_settings(kept):
    with pytest.raises(ValueError, match="is of a fit with task='regression', not 'classification'"):
        GPClassifier(**SVGP).fit(LABELS, "y", checkpoint=kept, resume=True)


def test_a_folder_is_refused_before_the_table_is_opened(kept, tmp_path, monkeypatch):
    monkeypatch.setattr("pseudopoint.estimators.streaming.open_source", None)
    refused("is of a fit with max_iter=90, not 91", folder=kept, max_iter=91)
    refused("holds the checkpoint of a fit", folder=kept, resume=False)
    (tmp_path / "file").write_text("")
    refused("a file has its name", folder=tmp_path / "file", resume=False, error=OSError)


def test_full_passes_that_had_ended_do_not_go_on(tmp_path, at_once):
    settings = COMMON | {"method": "collapsed", "max_iter": 300}
    model = GPRegressor(**settings).fit(TABLE, "y", checkpoint=tmp_path)
    assert model.converged_
    for _ in range(2):
        again = GPRegressor(**settings).fit(TABLE, "y", checkpoint=tmp_path, resume=True)
        assert again.converged_ and len(again.history_["bound"]) == len(model.history_["bound"])
        np.testing.assert_allclose(again.bound_, model.bound_, rtol=1e-10)


def test_a_checkpoint_that_cannot_be_written_costs_a_note_and_not_the_fit(tmp_path, monkeypatch, whole, at_once):
    saved, full = checkpoints.save, [True]

    def no_space(path, *given, **options):
        if full[0]:
            raise OSError(28, "No space left on device", str(path))
        return saved(path, *given, **options)

    monkeypatch.setattr(checkpoints, "save", no_space)
    with pytest.warns(UserWarning, match="the checkpoint in .* cannot be written \\(No space left on device\\)"):
        model = GPRegressor(**SVGP).fit(TABLE, "y", checkpoint=tmp_path)
    same(model, whole)
    assert sum("cannot be written" in note for note in model.notes_) == 1 and not list(tmp_path.glob("*.safetensors"))

    def room(record):  # from now on
        full[0] = False

    with pytest.warns(UserWarning, match="cannot be written"):
        model = GPRegressor(**SVGP).fit(TABLE, "y", checkpoint=tmp_path, resume=True, progress=room)
    assert not any("cannot be written" in note for note in model.notes_)
    assert {path.stem for path in tmp_path.glob("*.safetensors")} == {"chosen", "start", "steps"}  # none is left out
    same(GPRegressor(**SVGP).fit(TABLE, "y", checkpoint=tmp_path, resume=True), whole)


def test_a_damaged_checkpoint_is_refused(kept, tmp_path):
    for name, error in (("identity.json", ValueError), ("steps.safetensors", ModelFileError)):
        folder = tmp_path / name
        shutil.copytree(kept, folder)
        (folder / name).write_bytes((folder / name).read_bytes()[:40])
        refused("damaged", folder=folder, error=error)


def test_another_version_is_refused(kept, tmp_path):
    folder = tmp_path / "kept"
    shutil.copytree(kept, folder)
    path = folder / "identity.json"
    path.write_text(path.read_text().replace('"version": "', '"version": "9.'))
    refused("is of version 9.", folder=folder)


@pytest.mark.parametrize(
    "settings, word",
    [
        ({"optimiser": "Adam", "method": "auto"}, "optimiser='Adam' needs the rows in memory"),
        ({"method": "exact"}, "method='exact' needs the rows in memory"),
        ({"likelihood": "heteroscedastic", "method": "auto"}, "noise that depends on x needs the rows in memory"),
        ({"likelihood": "heteroscedastic_student_t"}, "noise that depends on x needs the rows in memory"),
        ({"likelihood": "student_t", "method": "collapsed"}, "is for a Gaussian likelihood"),
    ],
)
def test_what_needs_the_rows_in_memory_is_refused(settings, word, tmp_path):
    refused(word, error=FitError, folder=tmp_path, resume=False, **settings)


def test_arrays_part_by_part_are_the_table(tmp_path, whole, monkeypatch):
    arrays = GPRegressor(**SVGP).fit(X, TABLE.y.to_numpy(), checkpoint=tmp_path)
    same(arrays, whole)
    assert not hasattr(arrays, "feature_names_in_") and arrays.encoder_ is None
    path = tmp_path / "X.npy"
    np.save(path, X)
    monkeypatch.setattr("pseudopoint.estimators.base.LARGE_MAP", 0)
    same(GPRegressor(**SVGP).fit(np.load(path, mmap_mode="r"), TABLE.y.to_numpy()), whole)
    bad = X.copy()
    bad[3, 1] = np.nan
    with pytest.raises(ValueError, match="column 1 contains NaN"):
        GPRegressor(**SVGP).fit(bad, TABLE.y.to_numpy(), checkpoint=tmp_path / "b")
    bad[:, 1] = np.nan
    with pytest.raises(ValueError, match="column 1 contains NaN"):  # it was left out, and predictions failed
        GPRegressor(**SVGP).fit(bad, TABLE.y.to_numpy(), checkpoint=tmp_path / "b")
    with pytest.raises(ValueError, match="sample_weight needs the rows in memory"):
        GPRegressor(**SVGP).fit(X, TABLE.y.to_numpy(), np.ones(N), checkpoint=tmp_path / "c")


@pytest.mark.parametrize(
    "labels",
    [
        np.array([8, 9, 10]),
        np.array([1.0, 2.0, -3.0]),
        np.array([False, True]),
        np.array(["1.0", "1", "NA"]),
        np.array(["b", "a"], object),
    ],
    ids=["integers", "floats", "booleans", "text", "objects"],
)
@pytest.mark.parametrize("route", ["checkpoint", "memory map", "dask"])
def test_labels_of_arrays_part_by_part_became_text(labels, route, tmp_path, monkeypatch):
    y = labels[np.digitize(X[:, 0], [-0.5, 0.5]) % len(labels)]
    rows, target, kept = X, y, {}
    if route == "checkpoint":
        kept = {"checkpoint": tmp_path / "kept"}
    elif route == "dask":
        array = pytest.importorskip("dask.array")
        rows, target = array.from_array(X, chunks=(50, 2)), array.from_array(y, chunks=40)
    else:
        np.save(tmp_path / "X.npy", X)
        rows = np.load(tmp_path / "X.npy", mmap_mode="r")
        monkeypatch.setattr("pseudopoint.estimators.base.LARGE_MAP", 0)
    model = GPClassifier(**COMMON, max_iter=20).fit(rows, target, **kept)
    assert model.rows_ == N and model.classes_.dtype == y.dtype
    np.testing.assert_array_equal(model.classes_, np.unique(y))
    assert model.score(X, y) > 0.6 and np.isfinite(model.log_density(X, y)).all()


def test_labels_of_a_table_beside_it_are_its_own_and_those_within_it_stay_text(tmp_path):
    y = np.where(X[:, 0] > 0, 10, 9)
    frame: Any = TABLE[["a", "b"]].assign(y=y)
    settings: dict[str, Any] = COMMON | {"max_iter": 20}
    frames = pytest.importorskip("dask.dataframe")
    lazy = frames.from_pandas(frame, npartitions=2)
    assert GPClassifier(**settings).fit(lazy[["a", "b"]], lazy.y).classes_.tolist() == [9, 10]
    unnamed = GPClassifier(**settings).fit(lazy[["a", "b"]], lazy.y.rename(None))
    assert unnamed.score(frame[["a", "b"]], y) > 0.8
    assert GPClassifier(**settings).fit(frame, "y").classes_.tolist() == ["10", "9"]
    beside = GPClassifier(**settings).fit(frame[["a", "b"]], frame.y, checkpoint=tmp_path)
    assert beside.classes_.tolist() == [9, 10] and list(beside.feature_names_in_) == ["a", "b"]


@pytest.mark.parametrize(
    ("y", "word"),
    [
        (X[:, 0], "Unknown label type: continuous"),
        (np.where(X[:, 1] > 0, 1.0, np.nan), r"no label in \d+ of 120 rows"),
        (np.full(N, 7), "holds one class only, 7"),
        (np.ones((N, 2)), "y has? shape|y .*: give"),
    ],
)
def test_what_are_no_labels_is_refused_part_by_part(y, word, tmp_path):
    with pytest.raises(ValueError, match=word):
        GPClassifier(**COMMON).fit(X, y, checkpoint=tmp_path)


@pytest.mark.parametrize(("dtype", "plain"), [("boolean", bool), ("Int64", np.int64)])
@pytest.mark.parametrize("streamed", [False, True])
def test_nullable_labels_of_pandas_became_real_numbers(dtype, plain, streamed, tmp_path):
    y = pd.Series(X[:, 0] > 0).astype(dtype)
    model = GPClassifier(**COMMON, max_iter=20).fit(X, y, checkpoint=tmp_path if streamed else None)
    assert model.classes_.dtype == plain and model.classes_.tolist() == [0, 1]
    table = GPClassifier(**COMMON, max_iter=2).fit(TABLE[["a", "b"]], y)
    assert table.classes_.dtype == plain
