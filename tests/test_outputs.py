"""Several outputs in the core: the linear model of coregionalisation against dense Kronecker and NumPy oracles."""

# Fields take floats and NumPy arrays and become JAX arrays in `cast` or under jit; a type checker knows the last alone.
# pyright: reportArgumentType=false

import jax.numpy as jnp
import numpy as np
import oracles as o

from pseudopoint.bounds import collapsed, evidence_on_host, given_evidence, marginal, marginal_on_host
from pseudopoint.data import dataset
from pseudopoint.kernels import RBF, Coregionalised, Matern52
from pseudopoint.likelihoods import GaussianPerOutput
from pseudopoint.params import cast, trainable
from pseudopoint.posteriors import Collapsed, MixedOutputs, Model
from pseudopoint.starts.outputs import latent_points, mixing, moments_of_outputs, stacked

N, P, K = 7, 3, 2
rng = np.random.default_rng(5)
X, X_test, Y = rng.normal(size=(N, 2)), rng.normal(size=(4, 2)), rng.normal(size=(N, P))
W, NOISE = rng.normal(size=(P, K)), np.array([0.1, 0.3, 0.05])
KERNELS = RBF(0.8, 1.2), Matern52(1.5, 0.7)
MODEL = Model(Coregionalised(KERNELS, W), GaussianPerOutput(NOISE))
GAPS = Y.copy()
GAPS[2:, 1] = GAPS[5, 0] = np.nan


def kronecker(A, B):
    """Σ_k w_k w_kᵀ ⊗ κ_k(A, B): output by output."""
    parts = o.rbf(A, B, 0.8, 1.2), o.matern52(A, B, 1.5, 0.7)
    return np.sum([np.kron(np.outer(w, w), part) for w, part in zip(W.T, parts, strict=True)], axis=0)


def test_the_exact_evidence_and_predictions_are_those_of_the_dense_kronecker_form_with_gaps_as_rows_removed():
    model = cast(MODEL, np.float64)
    for targets in (Y, GAPS):
        data = dataset(*stacked(X, targets, np.ones(N)))
        there = ~np.isnan(targets.T.ravel())
        cov, noise, y = kronecker(X, X)[there][:, there], np.repeat(NOISE, N)[there], targets.T.ravel()[there]
        truth = o.exact_log_evidence(cov, noise, y)
        host = marginal_on_host(model, data)
        for bound in (marginal(model, data), host, given_evidence(model, (data, evidence_on_host(model, data)))):
            np.testing.assert_allclose(bound.value, truth, rtol=1e-12)
        across, prior = kronecker(X_test, X)[:, there], kronecker(X_test, X_test)
        mean, variance = o.exact_posterior(cov, across, np.diag(prior), noise, y)
        predictor = MixedOutputs(host.predictor(), P)
        for ours, dense in zip(predictor(jnp.asarray(X_test)), (mean, variance), strict=True):
            np.testing.assert_allclose(ours, dense.reshape(P, -1), atol=1e-10)
        joint = prior - across @ np.linalg.solve(cov + np.diag(noise), across.T)
        np.testing.assert_allclose(predictor.joint(jnp.asarray(X_test)).reshape(P * 4, -1), joint, atol=1e-10)


def test_points_of_latent_functions_at_all_rows_give_the_exact_evidence_and_fewer_a_lower_bound():
    data = dataset(*stacked(X, GAPS, np.ones(N)))
    exact = marginal(cast(MODEL, np.float64), data).value
    bounds = [
        collapsed(cast(Model(MODEL.kernel, MODEL.likelihood, Collapsed(Z, jitter=0.0)), np.float64), data)
        for Z in (latent_points(X, P, K), latent_points(X[:3], P, K))
    ]
    np.testing.assert_allclose(bounds[0].value, exact, rtol=1e-9)
    assert bounds[1].value < exact < bounds[1].upper()


def test_a_held_mixing_is_no_parameter():
    held = trainable(cast(Coregionalised(KERNELS, np.eye(2), mixed=False), np.float64))
    assert trainable(cast(Coregionalised(KERNELS, np.eye(2)), np.float64)).size - held.size == 4


def test_the_noise_of_an_output_is_that_of_its_rows_and_of_its_axis():
    at = MODEL.likelihood.at(dataset([[9.0, 2.0], [9.0, 0.0]], [0.0, 0.0], noise=[0.0, 0.5]))
    np.testing.assert_allclose(np.asarray(at.gaussian_noise), [0.05, 0.6])
    f, v = rng.normal(size=(2, P, N)) ** 2
    ours, total = np.asarray(MODEL.likelihood.log_density(f, v, Y.T)), v + NOISE[:, None]
    np.testing.assert_allclose(ours, -0.5 * (np.log(2 * np.pi * total) + (Y.T - f) ** 2 / total))


def test_moments_and_the_start_of_the_mixing_read_what_is_there():
    weight = rng.integers(1, 4, N).astype(float)
    mean, scale = moments_of_outputs(GAPS, weight)
    for p, y in enumerate(GAPS.T):
        seen = np.repeat(y[~np.isnan(y)], weight[~np.isnan(y)].astype(int))
        np.testing.assert_allclose([mean[p], scale[p]], [seen.mean(), seen.std()])
    g = rng.normal(size=(500, 1))
    start = mixing(np.column_stack([g, -g, rng.normal(size=500)]), 2)
    np.testing.assert_allclose(start @ start.T, [[1, -1, 0], [-1, 1, 0], [0, 0, 1]], atol=0.2)
