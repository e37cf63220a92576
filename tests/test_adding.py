"""How short it is to add a kernel, a likelihood or a setting: the blocks of CONTRIBUTING.md, run from outside of the
package; and names, tables, signatures and documents agree."""

import inspect
import re
import runpy
import sys
import textwrap
from pathlib import Path
from typing import Annotated, Any, ClassVar

import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float
from scipy import special

import pseudopoint
from pseudopoint import GPClassifier, GPRegressor, cli, names
from pseudopoint.estimators import checks, targets
from pseudopoint.kernels import AbstractStationary, Positive, Scale
from pseudopoint.likelihoods import AbstractLikelihood, Moments
from pseudopoint.names import SETTINGS, Setting, literals
from pseudopoint.optimise.named import OPTIMISERS
from pseudopoint.params import positive
from pseudopoint.recipes import FAMILIES
from pseudopoint.starts.hyperparameters import KERNELS, STARTS

pytestmark = pytest.mark.edge

ROOT = Path(pseudopoint.__file__).parents[1]
SETTINGS_PAGE = ROOT / "pages" / "settings.py"
X = np.linspace(0, 6, 30)[:, None]
Y = np.sin(X[:, 0]) + 0.1 * np.random.default_rng(0).normal(size=30)


def block(marker: str) -> str:
    """The block of Python in CONTRIBUTING.md that holds the marker."""
    found = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.DOTALL)
    return textwrap.dedent(next(each for each in found if marker in each))


@pytest.fixture(scope="module")
def classes() -> dict[str, Any]:
    """The classes of CONTRIBUTING.md, with what the files that they belong to import."""
    known = {"AbstractStationary": AbstractStationary, "Scale": Scale, "Positive": Positive, "positive": positive}
    known |= {"Float": Float, "Array": Array, "jnp": jnp, "np": np, "special": special, "__name__": __name__}
    known |= {"AbstractLikelihood": AbstractLikelihood, "Moments": Moments, "PerRow": Any, "ClassVar": ClassVar}
    for marker in ("class Cauchy", "class Logistic"):
        exec(block(marker), known)
    return known


SHORT: dict[str, Any] = {"max_iter": 5, "initial": "robust"}


def by_name(**words: Any) -> GPRegressor:
    """With words that its signature does not know."""
    return GPRegressor(**SHORT, **words, effort="fast")


def test_a_kernel_object_and_a_likelihood_object_need_no_change_of_the_package(classes, tmp_path):
    kernel, likelihood = classes["Cauchy"](1.0), classes["Logistic"](0.3)
    model = GPRegressor(kernel, likelihood=likelihood, **SHORT, method="laplace", effort="fast").fit(X, Y)
    model.save(tmp_path / "m", classes=[classes["Cauchy"], classes["Logistic"]])
    same = GPRegressor.load(tmp_path / "m", classes=[classes["Cauchy"], classes["Logistic"]])
    np.testing.assert_array_equal(same.predict_interval(X), model.predict_interval(X))
    assert np.mean(np.abs(model.predict(X) - np.sin(X[:, 0]))) < 0.1


def test_a_kernel_by_name_is_a_line_of_help_and_a_line_that_makes_it(classes, monkeypatch):
    monkeypatch.setitem(names.KERNELS, "cauchy", "smooth functions with long-range correlation")
    monkeypatch.setitem(KERNELS, "cauchy", classes["Cauchy"])
    model = by_name(kernel="cauchy").fit(X, Y)
    assert type(model.kernel_) is classes["Cauchy"] and model.kernel_.lengthscale.shape == (1,)


def test_a_likelihood_by_name_is_a_line_of_help_and_a_line_that_makes_it(classes, monkeypatch):
    known = classes | {"Target": targets.Target}
    monkeypatch.setitem(SETTINGS["likelihood"].words, "logistic", "real targets with a few outliers")
    monkeypatch.setitem(targets.REGRESSION, "logistic", eval(f"{{{block('lambda noise')}}}", known)["logistic"])
    model = by_name(likelihood="logistic", method="laplace").fit(X, Y)
    assert type(model.likelihood_) is classes["Logistic"]
    assert np.mean(np.abs(model.predict(X) - np.sin(X[:, 0]))) < 0.1


def test_a_setting_is_a_field_from_which_its_check_its_help_and_its_option_follow(monkeypatch, capsys):
    known = {"Annotated": Annotated, "Setting": Setting}
    exec("from typing import NamedTuple\nclass Toy(NamedTuple):\n" + textwrap.indent(block("patience:"), "    "), known)
    ((name, setting),) = names.described(known["Toy"]).items()
    monkeypatch.setitem(SETTINGS, name, setting)
    check = checks._CHECKS[setting.kind]
    assert check(name, None) is None and check(name, np.int64(3)) == 3
    with pytest.raises(ValueError, match="patience=0 must be a positive whole number"):
        check(name, 0)
    assert "patience : default None\n        Iterations without" in names.parameters({name: (setting.kind, None)})
    assert "## patience\n\nIterations without progress" in runpy.run_path(str(SETTINGS_PAGE))["page"]()

    given = {}
    app = cli.typer.Typer()
    app.command()(cli.settings_as_options(lambda **settings: given.update(settings)))
    monkeypatch.setattr(sys, "argv", ["toy", "--patience", "4"])
    with pytest.raises(SystemExit):
        app()
    assert given["patience"] == 4 and given["max_iter"] is None


class Patient(GPRegressor):
    def __init__(self, kernel: Any = "rbf", *, patience=3):
        GPRegressor.__init__(self, kernel, max_iter=2)
        self.patience = patience


def test_a_subclass_may_have_parameters_of_its_own():
    model = Patient(patience=5).fit(X, Y)
    assert model.get_params() == {"kernel": "rbf", "patience": 5} and np.shape(model.predict(X)) == (30,)


# --- Names, tables, signatures and documents agree ---

TABLES = {
    "kernel": (names.KERNELS, {"auto": None} | KERNELS),
    "likelihood": (names.REGRESSION, targets.REGRESSION),
    "likelihood of classes": (names.CLASSIFICATION, targets.CLASSIFICATION),
    "optimiser": (names.OPTIMISERS, {"auto": None} | OPTIMISERS),
    "posterior": (names.POSTERIORS, FAMILIES),
    "initial": (names.INITIALS, STARTS),
}
ONLY = {"regression": {"bound", "initial_noise", "num_latents", "outputs", "scale_target", "target_warp"}}
OWN_DEFAULTS = {"batch_size": 512}  # of GPClassifier


@pytest.mark.parametrize("what", TABLES)
def test_every_name_has_help_and_stands_for_something(what):
    described, made = TABLES[what]
    assert list(described) == list(made)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_words_of_a_setting_are_those_of_its_type_and_all_have_help(name):
    setting = SETTINGS[name]
    assert set(map(repr, literals(setting.kind))) == set(map(repr, setting.words))
    assert setting.help.endswith(".") and all(setting.words.values())
    assert not any(text.endswith(".") for text in setting.words.values())
    if not setting.words:
        assert setting.kind in checks._CHECKS


@pytest.mark.parametrize("cls", [GPRegressor, GPClassifier])
def test_the_signature_of_an_estimator_has_the_settings_in_their_order_with_their_words_and_defaults(cls):
    given, text = inspect.signature(cls).parameters, str(cls.__doc__)
    every = SETTINGS | names.ESTIMATORS
    assert list(given) == [name for name in every if cls is GPRegressor or name not in ONLY["regression"]]
    for name, parameter in given.items():
        words = dict(every[name].words)
        if name == "likelihood":
            words = names.REGRESSION if cls is GPRegressor else names.CLASSIFICATION
        assert literals(parameter.annotation) == list(words), name
        default = OWN_DEFAULTS.get(name, every[name].default) if cls is GPClassifier else every[name].default
        assert parameter.default == default, name
        assert f"\n    {name} : default {default!r}\n        {every[name].help[:40]}" in text
        assert all(f"            {word!r}: " in text for word in words)
    stored: dict[str, Any] = {name: name for name in given}
    assert cls(**stored).get_params() == stored


def test_the_page_of_settings_is_that_of_names():
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert page == runpy.run_path(str(SETTINGS_PAGE))["page"](), "python pages/settings.py > docs/settings.md"


@pytest.mark.parametrize("page, words", [("optimisers", OPTIMISERS), ("posteriors", FAMILIES)])
def test_a_page_of_methods_has_every_name_and_no_other(page, words):
    table = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8").split("\n| name | ", 1)[1].split("\n\n")[0]
    named = [name for row in table.splitlines()[2:] for name in re.findall(r"`([^`]+)`", row.split("|")[1])]
    assert sorted(named) == sorted(words)


def test_an_option_is_renamed_into_one_that_there_is():
    there = set(inspect.signature(cli.fit).parameters) | set(inspect.signature(cli.predict).parameters)
    assert {new[2:].replace("-", "_") for new in cli.RENAMED.values()} <= there


def test_no_more_names_stand_at_the_top_than_fit_on_a_screen():
    assert len(pseudopoint.__all__) <= 25
