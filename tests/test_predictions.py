"""What estimators predict beyond a mean: covariances, drawn functions and latent functions, against closed forms."""

# Settings are unpacked from dictionaries, and learned state has no declaration: a type checker can follow neither.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false

import numpy as np
import pytest
from fits import EACH, EXACT, fit_each, new_rows, table
from scipy.stats import norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from pseudopoint import RBF, GPClassifier, GPRegressor

pytestmark = pytest.mark.edge
BRIEF = {"initial": "robust", "max_iter": 3}


@pytest.fixture(scope="module")
def fitted():
    """One fit of each method, for tests that only look."""
    return fit_each()


@pytest.fixture(scope="module")
def of_likelihood():
    """A brief fit for each kind of target, and new rows."""
    (X, y), (rows, _) = table(), new_rows(6)
    targets = {"poisson": np.round(y - y.min()), "ordinal": np.digitize(y, np.quantile(y, [0.3, 0.7]))}
    names = ("heteroscedastic", "heteroscedastic_student_t", "student_t", "laplace", "poisson", "ordinal")
    fits = {name: GPRegressor(likelihood=name, **BRIEF, effort="fast").fit(X, targets.get(name, y)) for name in names}
    return fits, rows


# --- Joint covariance ------------------------------------------------------------------------------------------------


def test_the_covariance_is_that_of_scikit_learn_at_the_same_numbers(fitted):
    (X, y), (rows, _), model = table(), new_rows(6), fitted["exact"]
    s, k = model.standardiser_, model.kernel_
    kernel = ConstantKernel(float(k.variance)) * Matern(np.asarray(k.lengthscale), nu=2.5)
    theirs = GaussianProcessRegressor(
        kernel + WhiteKernel(float(model.likelihood_.variance)), optimizer=None, normalize_y=True
    ).fit(s.inputs(X), y)
    mean, covariance = theirs.predict(s.inputs(rows), return_cov=True)
    ours = model.predict(rows, return_cov=True)
    np.testing.assert_allclose(ours[0], mean, rtol=1e-8)
    np.testing.assert_allclose(ours[1], covariance, rtol=1e-6, atol=1e-6 * covariance.max())


@EACH
def test_the_covariance_has_the_variances_on_its_diagonal_and_is_that_of_drawn_functions_beside_it(fitted, settings):
    model, (rows, _) = fitted[settings["method"]], new_rows(6)
    mean, std = model.predict(rows, return_std=True)
    again, covariance = model.predict(rows, return_cov=True)
    np.testing.assert_array_equal(again, mean)
    np.testing.assert_array_equal(np.diag(covariance), std**2)
    np.testing.assert_array_equal(covariance, covariance.T)
    assert np.linalg.eigvalsh(covariance).min() > 0
    noise = covariance - np.cov(model.sample_y(rows, 20_000))
    own = model.standardiser_.target_scale**2 * float(model.likelihood_.variance)
    np.testing.assert_allclose(noise, own * np.eye(6), atol=0.05 * std.max() ** 2)


@pytest.mark.parametrize("name", ["heteroscedastic", "heteroscedastic_student_t", "student_t", "laplace"])
def test_every_real_target_has_a_covariance(of_likelihood, name):
    model, rows = of_likelihood[0][name], of_likelihood[1]
    covariance = model.predict(rows, return_cov=True)[1]
    np.testing.assert_array_equal(np.diag(covariance), model.predict(rows, return_std=True)[1] ** 2)
    drawn = np.cov(model.sample_y(rows, 20_000))
    aside = ~np.eye(len(rows), dtype=bool)
    np.testing.assert_allclose(covariance[aside], drawn[aside], atol=0.05 * drawn.max())


def test_covariances_that_make_no_sense_are_refused(fitted, of_likelihood):
    for name in ("poisson", "ordinal"):
        with pytest.raises(ValueError, match="return_cov is for real targets"):
            of_likelihood[0][name].predict(of_likelihood[1], return_cov=True)
    with pytest.raises(RuntimeError, match="return_std or return_cov"):
        fitted["exact"].predict(new_rows()[0], return_std=True, return_cov=True)
    with pytest.raises(ValueError, match=r"5001 rows together need a 5001² matrix: pass at most 5000"):
        fitted["exact"].predict(np.ones((5001, 2)), return_cov=True)
    X, y = table()
    with pytest.raises(ValueError, match="too large a number in squared units"):
        GPRegressor(**EXACT, **BRIEF, effort="fast").fit(X, 1e200 * y).predict(X, return_cov=True)


# --- Drawn functions -------------------------------------------------------------------------------------------------


def test_drawn_functions_have_scikit_learns_shape_and_seed(fitted):
    model, (rows, _) = fitted["exact"], new_rows(6)
    draws = model.sample_y(rows)
    assert draws.shape == (6, 1) and model.sample_y(rows, n_samples=3).shape == (6, 3)
    np.testing.assert_array_equal(model.sample_y(rows, random_state=0), draws)
    assert not np.array_equal(model.sample_y(rows, random_state=None), draws)
    assert not hasattr(model, "sample")


# --- Latent functions ------------------------------------------------------------------------------------------------


@EACH
def test_the_latent_function_of_a_real_target_is_that_target_without_noise(fitted, settings):
    model, (rows, _) = fitted[settings["method"]], new_rows()
    mean, std = model.predict(rows, return_std=True)
    latent, latent_std = model.predict_latent(rows, return_std=True)
    np.testing.assert_allclose(latent, mean, rtol=1e-12)
    np.testing.assert_array_equal(model.predict_latent(rows), latent)
    noise = model.standardiser_.target_scale**2 * float(model.likelihood_.variance)
    np.testing.assert_allclose(latent_std**2 + noise, std**2, rtol=1e-10)


def test_a_noise_that_is_a_function_is_the_second_latent_function(of_likelihood):
    model, rows = of_likelihood[0]["heteroscedastic"], of_likelihood[1]
    (mean, std), (latent, latent_std) = (ask(rows, return_std=True) for ask in (model.predict, model.predict_latent))
    assert latent.shape == latent_std.shape == (6, 2)
    scale = float(model.likelihood_.scale) * model.standardiser_.target_scale
    np.testing.assert_allclose(latent[:, 0], mean, rtol=1e-12)
    noise = scale**2 * np.exp(2 * latent[:, 1] + 2 * latent_std[:, 1] ** 2)
    np.testing.assert_allclose(latent_std[:, 0] ** 2 + noise, std**2, rtol=1e-10)


def test_the_latent_function_of_counts_is_the_logarithm_of_their_rate(of_likelihood):
    model, rows = of_likelihood[0]["poisson"], of_likelihood[1]
    latent, std = model.predict_latent(rows, return_std=True)
    rate = float(model.likelihood_.scale) * np.exp(latent + 0.5 * std**2)
    np.testing.assert_allclose(rate, model.predict(rows), rtol=1e-6)


def test_the_latent_function_of_two_classes_has_its_constant_mean():
    X, y = table()
    model = GPClassifier(likelihood="probit", **BRIEF, effort="fast").fit(X, y > np.quantile(y, 0.8))
    latent, std = model.predict_latent(X, return_std=True)
    assert latent.shape == std.shape == (len(X),) and model.mean_ < 0
    np.testing.assert_allclose(norm.cdf(latent / np.sqrt(1 + std**2)), model.predict_proba(X)[:, 1], rtol=1e-8)
    np.testing.assert_allclose(model.predict_latent([[1e9, 1e9]]), model.mean_, rtol=1e-6)


def test_several_classes_have_a_latent_function_each():
    X, y = table()
    model = GPClassifier(RBF(np.array([1.0, 30.0])), **BRIEF, effort="fast").fit(
        X, np.digitize(y, np.quantile(y, [0.3, 0.7]))
    )
    latent, std = model.predict_latent(X, return_std=True)
    assert latent.shape == std.shape == (len(X), 3) and (std > 0).all()
    np.testing.assert_array_equal(model.predict_latent(X), latent)
    assert np.mean(latent.argmax(axis=1) == model.predict(X)) > 0.9
    np.testing.assert_allclose(model.predict_latent([[1e9, 1e9]])[0], model.mean_, rtol=1e-6)


# --- What is printed -------------------------------------------------------------------------------------------------


def test_what_was_learned_is_printed_as_numbers(fitted):
    model = fitted["exact"]
    lengthscales = ", ".join(str(float(f"{x:.4g}")) for x in model.kernel_.lengthscale)
    variance = float(f"{float(model.kernel_.variance):.4g}")
    assert str(model.kernel_) == f"Matern52(lengthscale=[{lengthscales}], variance={variance})"
    assert str(model.likelihood_) == f"Gaussian(variance={float(f'{float(model.likelihood_.variance):.4g}')})"
    assert repr(GPRegressor(RBF(2.0) * 3)) == (
        "GPRegressor(kernel=RBF(lengthscale=2.0, variance=1.0) * Constant(variance=3.0))"
    )
