"""Models exported to ONNX predict in onnxruntime what they predict here; what cannot be exported is refused."""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportOptionalCall=false

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnxruntime
import pandas as pd
import pytest
import scipy.special
from conformance import KERNELS, LIKELIHOODS, rows

from pseudopoint import GPClassifier, GPRegressor, to_onnx
from pseudopoint.commands import export_model, in_lines
from pseudopoint.export.columns import read_rows
from pseudopoint.export.functions import FUNCTIONS
from pseudopoint.export.graph import Graph
from pseudopoint.export.primitives import traced
from pseudopoint.kernels import RBF, AbstractKernel
from pseudopoint.likelihoods import Warped
from pseudopoint.params import positive
from pseudopoint.warps import Logarithm, RankNormal, YeoJohnson

pytestmark = pytest.mark.edge
QUICK = {"effort": "fast", "max_iter": 4}
REPEATED = ("small", "learned", "10", "51", "flat", "robustmax")  # of another case, or refused


def run(path, columns):
    """All outputs, by name."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options)
    return dict(zip([out.name for out in session.get_outputs()], session.run(None, columns), strict=True))


def both(function, X):
    """What a JAX function of X gives, and what its graph gives, array by array."""
    with jax.enable_x64(True):
        expected = jax.jit(function)(X)
        graph = Graph()
        inputs, name = read_rows(graph, X.shape[1])
        made = [graph.add("Identity", value) for value in traced(graph, function, name, X.shape[1])]
    shapes = [[None] * part.ndim for part in expected]
    info = lambda each: onnx.helper.make_tensor_value_info(each[0], onnx.TensorProto.DOUBLE, each[1])
    outputs = list(map(info, zip(made, shapes, strict=True)))
    found = run(graph.model(inputs, outputs, {}).SerializeToString(), {"X": X})
    return zip(expected, found.values(), strict=True)


def test_functions_that_runtimes_lack_have_double_precision():
    x = np.r_[np.linspace(-6, 6, 400), np.geomspace(1e-12, 1, 50), -np.geomspace(1e-12, 1, 50)]
    domain = {"log1p": x[x > -1], "acos": np.clip(x, -1, 1), "asin": np.clip(x, -1, 1), "rsqrt": x[x > 0]}
    truth = {"erf": scipy.special.erf, "erfc": scipy.special.erfc, "acos": np.arccos, "asin": np.arcsin}
    truth |= {"asinh": np.arcsinh, "rsqrt": lambda x: x**-0.5}
    with jax.enable_x64(True):
        for name, function in FUNCTIONS.items():
            at = domain.get(name, x)
            expected = truth.get(name, getattr(np, name, None))(at)
            atol = 3e-15 if name in ("erf", "acos", "asin") else 0
            np.testing.assert_allclose(function(jnp.asarray(at)), expected, rtol=2e-14, atol=atol, err_msg=name)
        big = jnp.asarray([-1e200, 1e200])
        np.testing.assert_allclose(FUNCTIONS["asinh"](big), np.arcsinh([-1e200, 1e200]), rtol=1e-15)


@pytest.mark.parametrize("D", [3, 5])
def test_every_kernel(D):
    X, Z = rows(D)
    X[0], X[1, 0] = Z[0], Z[1, 0]
    kernels = [make(D) for make in KERNELS.values()]
    function = lambda X: [part for k in kernels for part in (k.from_prepared(k.prepare(jnp.asarray(Z)), X), k.diag(X))]
    for here, there in both(function, X):
        np.testing.assert_allclose(there, here, rtol=1e-11, atol=1e-13)


def test_every_likelihood_but_one():
    rng = np.random.default_rng(1)
    X = np.column_stack([rng.normal(size=(9, 3)), rng.uniform(0.1, 2, (9, 3))])
    likelihoods = [make().likelihood for name, make in LIKELIHOODS.items() if not any(x in name for x in REPEATED)]

    def function(X):
        out = []
        for likelihood in likelihoods:
            C = likelihood.latents
            f = (X[:, 0], X[:, 3]) if C == 1 else (X[:, :C].T, X[:, 3 : 3 + C].T)
            out += [likelihood.log_probabilities(*f)] if likelihood.classes else list(likelihood.predict(*f))
        return out

    for here, there in both(function, X):
        np.testing.assert_allclose(there, here, rtol=1e-9)


def test_a_regression_with_warps_has_mean_deviation_and_interval(tmp_path):
    rng = np.random.default_rng(0)
    X = np.exp(rng.normal(size=(40, 2)))
    model = GPRegressor("rbf", method="exact", **QUICK).fit(X, np.sin(X[:, 0]) + 0.2 * rng.normal(size=40))
    # As a search would have chosen them, which takes longer than all else here.
    model.likelihood_ = Warped(model.likelihood_, YeoJohnson(np.asarray(0.4)))
    columns = model.standardiser_.inputs(X).T
    warps = RankNormal.of(columns[0]), Logarithm(np.asarray(2.0), np.asarray(-1.0))
    model.standardiser_ = eqx.tree_at(lambda s: s.warps, model.standardiser_, warps)
    assert to_onnx(model, tmp_path / "m.onnx", level=0.8) == ["mean", "std", "lower", "upper"]
    new = np.exp(rng.normal(size=(7, 2)) * 1.5)
    mean, std = model.predict(new, return_std=True)
    for at in (new, new[:1]):
        out = run(tmp_path / "m.onnx", {"X": at})
        np.testing.assert_allclose(out["mean"], mean[: len(at)], rtol=1e-9)
        np.testing.assert_allclose(out["std"], std[: len(at)], rtol=1e-9)
        ends = model.predict_interval(new, level=0.8)[: len(at)]
        np.testing.assert_allclose(np.column_stack([out["lower"], out["upper"]]), ends, rtol=1e-9)


def table(N=50):
    rng = np.random.default_rng(2)
    frame = pd.DataFrame({"size": rng.normal(size=N).round(2), "city": rng.choice(["Oslo", "Rome", "Bern"], N)})
    frame["new"], frame["day"] = rng.random(N) < 0.5, pd.date_range("2024-01-01", periods=N)
    score = frame["size"] + (frame["city"] == "Rome") + 0.2 * rng.normal(size=N)
    frame.loc[::7, "size"], frame.loc[3::9, "city"] = -999.0, None
    return frame, score


def as_columns(frame):
    """The inputs of the graph, as docs/serving.md says."""
    days = (frame["day"] - pd.Timestamp("1970-01-01")) / pd.Timedelta(1, "D")
    numbers = {"size": frame["size"], "new": frame["new"], "day": days}
    columns = {name: column.to_numpy(np.float64)[:, None] for name, column in numbers.items()}
    return columns | {"city": frame["city"].fillna("").to_numpy(object)[:, None]}


def test_a_model_of_the_command_line_takes_the_columns_of_the_table_and_says_levels(tmp_path):
    from pseudopoint.commands import fit_table, predict_table

    frame, score = table()
    frame.assign(stars=np.digitize(score, [-0.5, 0.5]) + 1.0).to_parquet(tmp_path / "t.parquet")
    fit_table(
        tmp_path / "t.parquet",
        "stars",
        likelihood="ordinal",
        out=tmp_path / "m.model",
        missing=["-999"],
        test_fraction=0.1,
        **QUICK,
    )
    result = export_model(tmp_path / "m.model")
    assert result["exported"] == str(tmp_path / "m.onnx") and dict(in_lines(result))["inputs"] == "size, city, new, day"
    new = frame.iloc[:12].copy()
    new.loc[2, "city"] = "Paris"
    new.to_parquet(tmp_path / "new.parquet")
    predict_table(tmp_path / "m.model", tmp_path / "new.parquet", tmp_path / "p.parquet")
    expected, out = pd.read_parquet(tmp_path / "p.parquet"), run(tmp_path / "m.onnx", as_columns(new))
    assert result["outputs"] == list(out) == ["stars_mean", "stars_std", "stars_lower", "stars_upper"]
    np.testing.assert_allclose(np.column_stack(list(out.values())), expected.to_numpy(), rtol=1e-7)


def test_classes_have_labels_and_probabilities(tmp_path):
    frame, score = table()
    labels = np.array(["bad", "fair", "good"])[np.digitize(score, [-0.5, 0.5])]
    model = GPClassifier(**QUICK).fit(frame, labels)
    assert to_onnx(model, tmp_path / "m.onnx") == ["target_predicted", "target_probability"]
    out = run(tmp_path / "m.onnx", as_columns(frame[:9]))
    assert out["target_predicted"].tolist() == model.predict(frame[:9]).tolist()
    np.testing.assert_allclose(out["target_probability"], model.predict_proba(frame[:9]), rtol=1e-8)
    properties = {each.key: each.value for each in onnx.load(tmp_path / "m.onnx").metadata_props}
    assert json.loads(properties["classes"]) == ["bad", "fair", "good"]


class Odd(AbstractKernel):
    """Computes what ONNX has nothing for."""

    scale: float = positive(default=1.0)

    def __call__(self, X, Z):
        return RBF()(X, Z) * jnp.exp(-jax.scipy.special.gammaln(3 + X**2).sum()) * self.scale

    def diag(self, X):
        return jax.scipy.special.gammaln(3 + X[:, 0] ** 2) * self.scale


def test_what_cannot_be_exported_is_refused_and_writes_nothing(tmp_path):
    X = np.random.default_rng(0).normal(size=(20, 1))
    one = GPClassifier().fit(X, np.ones(20))
    odd = GPRegressor(Odd(), method="exact", max_iter=1, effort="fast").fit(X, X[:, 0])
    plain, two = (GPRegressor("rbf", method="exact", **QUICK).fit(X, y) for y in (X[:, 0], np.hstack([X, X])))
    for model, level, words in (
        (one, 0.9, "one class only"),
        (odd, 0.9, "the model computes 'lgamma'"),
        (two, 0.9, "of one target"),
        (plain, 1.5, "level=1.5 must lie"),
    ):
        with pytest.raises(ValueError, match=words):
            to_onnx(model, tmp_path / "m.onnx", level=level)
    assert not list(tmp_path.iterdir())
