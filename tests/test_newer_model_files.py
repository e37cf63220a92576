"""Model files of other versions: an older one is filled with defaults, a newer one is refused in one sentence."""

import dataclasses
import json
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from model_files import Line, assert_same, forge, refused
from sklearn.model_selection import GridSearchCV

from pseudopoint import GPClassifier, GPRegressor, ModelFileError, persistence
from pseudopoint import commands as tasks
from pseudopoint.estimators.frames import restored
from pseudopoint.tables import TableEncoder

pytestmark = pytest.mark.edge
SETTINGS: dict[str, Any] = {"max_iter": 2, "initial": "robust", "effort": "fast"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A table, and what the command line saved of it: each test changes what it reads, never the file."""
    folder = tmp_path_factory.mktemp("newer")
    x = np.linspace(0, 6, 30)
    pd.DataFrame({"x": x, "city": ["Oslo", "Rome", "Bern"] * 10, "y": np.sin(x)}).to_csv(folder / "t.csv", index=False)
    tasks.fit_table(folder / "t.csv", "y", out=folder / "y.model", method="exact", **SETTINGS)
    tasks.fit_table(folder / "t.csv", "city", out=folder / "city.model", num_inducing=5, method="collapsed", **SETTINGS)
    return folder


def changed(folder, path, name, change):
    """The file as a version would have saved it whose tree is what `change` makes of ours."""
    kind = persistence.describe(folder / name)["kind"]
    tree = persistence.load(folder / name, kind=kind)
    change(tree)
    persistence.save(path, tree, kind=kind)
    return path


# --- Newer ---

NEWER = {
    "setting": lambda tree: tree["parameters"].update(warp="log"),
    "attribute": lambda tree: tree["state"].update(warp_=1.0),
    "part": lambda tree: tree.update(warp=[]),
    "field of the encoder": lambda tree: tree["extra"]["encoder"].update(warp=True),
    "field of a column": lambda tree: tree["extra"]["encoder"]["columns"][0].update(warp=True),
    "kind of column": lambda tree: tree["extra"]["encoder"]["columns"][0].update(kind="place"),
}


@pytest.mark.parametrize("name", ["y.model", "city.model"])
@pytest.mark.parametrize("what", NEWER)
def test_what_a_newer_version_added_asks_for_an_upgrade(folder, path, name, what):
    changed(folder, path, name, NEWER[what])
    for use in (tasks.inspect_model, lambda path: tasks.score_table(path, folder / "t.csv")):
        with pytest.raises(ModelFileError, match=r"^The model file .* does not know; upgrade pseudopoint\.$") as error:
            use(path)
        assert "\n" not in str(error.value) and "warp" in str(error.value) or "describes its table" in str(error.value)


def test_a_class_or_a_field_of_a_newer_version_asks_for_an_upgrade(path):
    refused(forge(path, '{"class": ".kernels.Newest", "fields": {}}'), "no class of this pseudopoint; upgrade pseudo")
    fields = {"lengthscale": 1.0, "variance": 1.0, "warp": 0.0}
    refused(forge(path, json.dumps({"class": ".kernels.RBF", "fields": fields})), "with warp .* upgrade pseudopoint")


SPOILT = {
    "no parts": lambda tree: tree.clear(),
    "settings": lambda tree: tree.update(parameters=3),
    "state": lambda tree: tree.update(state=[1]),
    "encoder": lambda tree: tree["extra"].update(encoder=5),
    "columns": lambda tree: tree["extra"]["encoder"].update(columns=5),
    "no columns": lambda tree: tree["extra"]["encoder"].pop("columns"),
    "attribute": lambda tree: tree["state"].pop("predictor_"),
}


@pytest.mark.parametrize("what", SPOILT)
def test_a_tree_of_another_shape_is_no_bug_of_ours(folder, path, what):
    changed(folder, path, "y.model", SPOILT[what])
    with pytest.raises(ModelFileError, match=r"^The model file .*; .*\.$"):
        tasks.inspect_model(path)


# --- Older ---


class Grown(eqx.Module):
    """A class that was `Line` once, and has since got fields with defaults."""

    slope: Any
    offset: Any = eqx.field(converter=jnp.asarray)
    name: str = eqx.field(static=True, default="line")
    spread: Any = eqx.field(converter=lambda value: np.asarray(value, float), default=2)
    curve: Any = eqx.field(converter=jnp.asarray, default=0.5)
    tags: dict[str, int] = eqx.field(static=True, default_factory=dict)


def test_a_field_that_the_file_lacks_has_its_default(path):
    persistence.save(path, Line(np.ones(2), np.float64(0.1)), kind="test", classes=[Line])
    spec = persistence.describe(path)["spec"] | {"class": persistence._name(Grown)}
    forge(path, json.dumps(spec), {"test.slope": np.ones(2), "test.offset": np.array(0.1)})
    one, two = (persistence.load(path, kind="test", classes=[Grown]) for _ in range(2))
    assert_same(vars(one)["spread"], np.array(2.0))
    assert type(one.curve) is np.ndarray and float(one.curve) == 0.5  # as all arrays of a file
    assert one.tags == {} and one.tags is not two.tags and one.offset.dtype == np.float64
    assert list(vars(one)) == [field.name for field in dataclasses.fields(Grown)]
    assert jax.tree.structure(one) == jax.tree.structure(Grown(1.0, 2.0))


def test_settings_and_attributes_that_the_file_lacks_have_their_defaults(folder, path):
    def older(tree):
        del tree["parameters"]["lengthscale_prior"], tree["state"]["levels_"], tree["extra"]["encoder"]["classes"]

    changed(folder, path, "y.model", older)
    model = GPRegressor.load(path)
    assert model.lengthscale_prior == GPRegressor(effort="fast").lengthscale_prior and model.levels_ is None
    same, other = (tasks.score_table(file, folder / "t.csv") for file in (folder / "y.model", path))
    assert same == other


def test_settings_and_measures_are_found_under_the_names_of_earlier_versions(folder, path):
    def older(tree):
        tree["parameters"]["noise_variance"] = 2 * tree["parameters"].pop("initial_noise")
        tree["extra"]["test"]["interval"] = tree["extra"]["test"].pop("level")

    changed(folder, path, "y.model", older)
    assert GPRegressor.load(path).initial_noise == 2 * GPRegressor(effort="fast").initial_noise
    new, old = (tasks.inspect_model(file) for file in (folder / "y.model", path))
    assert old["test"] == new["test"] and list(old["test"]) != []
    assert "inside the 90 % interval" in str(tasks.in_lines(old))


# --- Settings that a search leaves ---


def fitted(**settings: Any):
    X = np.linspace(0, 6, 20)[:, None]
    settings = SETTINGS | {"method": "exact"} | settings
    return GPRegressor(**settings).fit(X, np.sin(X[:, 0]))


LEFT = {
    "kernel": np.array(["rbf"])[0],
    "dtype": np.array(["float64"])[0],
    "max_iter": np.int64(2),
    "num_inducing": np.uint8(5),
    "initial_noise": np.float32(0.25),
    "lengthscale_prior": np.float64(np.inf),
    "learn_inducing": np.bool_(False),
    "scale_target": np.array([True])[0],
    "random_state": np.int32(7),
    "inducing": pd.DataFrame({"x": [0.0, 1.0, 2.0]}),
}


@pytest.mark.parametrize("name", LEFT)
def test_a_setting_that_numpy_or_pandas_made_comes_back_equal(path, name):
    model = fitted(**{name: LEFT[name]})
    model.save(path)
    loaded = GPRegressor.load(path)
    assert np.array_equal(getattr(loaded, name), LEFT[name])
    X = np.array([[0.5], [7.0]])
    assert np.array_equal(loaded.predict(X), model.predict(X))
    if name != "inducing":
        assert loaded.get_params() == model.get_params()


def test_what_a_grid_search_over_arrays_leaves_can_be_saved(path):
    grid = {
        "kernel": np.array(["rbf", "matern32"]),
        "initial_noise": np.array([0.1, 0.2]),
        "max_iter": np.arange(1, 2),
    }
    X = np.linspace(0, 6, 20)[:, None]
    search = GridSearchCV(GPRegressor(initial="robust", method="exact", effort="fast"), grid, cv=2).fit(
        X, np.sin(X[:, 0])
    )
    search.best_estimator_.save(path, extra={"scores": search.cv_results_["mean_test_score"], "best": np.str_("é")})
    model, extra = GPRegressor.load_with_extra(path)
    assert model.get_params() == search.best_estimator_.get_params() and extra["best"] == "é"
    assert np.array_equal(extra["scores"], search.cv_results_["mean_test_score"])


@pytest.mark.parametrize("cls", [GPRegressor, GPClassifier])
def test_every_attribute_that_a_fit_sets_is_declared_and_no_other_is_saved(path, cls):
    X = pd.DataFrame({"x": np.linspace(0, 6, 20)})
    model = cls(max_iter=1, initial="robust", method="collapsed", num_inducing=4).fit(X, (X["x"] > 3) * 1)
    model.save(path)
    assert set(vars(cls.load(path))) == set(vars(model))
    model.note_ = "of the user"
    with pytest.raises(ModelFileError, match="cannot hold note_, which GP.* does not learn; use `extra`"):
        model.save(path)
    assert "note_" not in vars(cls.load(path))


def test_the_encoder_of_today_is_known(folder):
    encoder, _ = TableEncoder.learn(pd.read_csv(folder / "t.csv"), "y")
    assert restored(encoder.to_dict()) == encoder
