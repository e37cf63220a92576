"""Several latent functions are single ones side by side, from one factorisation or from one each."""

# pyright: reportArgumentType=false, reportCallIssue=false

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from lattice import close, random_q
from programs import batched_factors

from pseudopoint import bounds
from pseudopoint.data import dataset
from pseudopoint.gaussians import MeanPrecision
from pseudopoint.kernels import Matern52
from pseudopoint.likelihoods import Gaussian, Heteroscedastic, Softmax
from pseudopoint.linalg import cholesky, inverse_of_chol
from pseudopoint.optimise.minibatch import NaturalGradient, constant
from pseudopoint.params import cast
from pseudopoint.posteriors import IndependentLatents, Model, Unwhitened, Whitened

C, M, N = 3, 5, 11
rng = np.random.default_rng(5)
X, Z = rng.normal(size=(N, 2)), rng.normal(size=(M, 2))
LENGTHSCALES = [np.array([0.7, 1.1]), np.array([1.9, 0.4]), np.array([1.0, 1.0])]


def each_q():
    moments = [random_q(c, M) for c in range(C)]
    return [MeanPrecision(mean, np.linalg.inv(cov)) for mean, cov in moments]


def stacked(trees):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


@pytest.mark.parametrize("separate", [False, True], ids=["shared", "separate"])
@pytest.mark.parametrize("family", [Whitened, Unwhitened])
def test_several_latent_functions_are_single_ones_side_by_side(family, separate):
    kernels = [cast(Matern52(LENGTHSCALES[c if separate else 0], 1.3), jnp.float64) for c in range(C)]
    qs = [cast(q, jnp.float64) for q in each_q()]
    kernel = stacked(kernels) if separate else kernels[0]
    several = IndependentLatents(base=family(jnp.asarray(Z), stacked(qs)), separate=separate)
    projection = several.project(kernel)
    marginals, predictor = projection.marginals(jnp.asarray(X)), projection.predictor()
    single = [family(jnp.asarray(Z), q).project(k) for q, k in zip(qs, kernels, strict=True)]
    for c in range(C):
        for ours, alone in zip(marginals, single[c].marginals(jnp.asarray(X)), strict=True):
            close(ours[c], alone, 1e-12)
        for ours, alone in zip(predictor(jnp.asarray(X)), single[c].predictor()(jnp.asarray(X)), strict=True):
            close(ours[c], alone, 1e-12)
        close(predictor.covariance(jnp.asarray(X))[c], single[c].predictor().covariance(jnp.asarray(X)), 1e-12)
    close(projection.log_prior, sum(p.log_prior for p in single), 1e-12)
    close(projection.divergence, sum(p.divergence for p in single), 1e-12)
    assert predictor.Zv.shape == (M, 2) and predictor.jitter >= 0


def test_functions_that_share_the_kernel_share_its_factorisation():
    model = Model(
        cast(Matern52(LENGTHSCALES[0], 1.3), jnp.float64),
        Softmax(C),
        IndependentLatents(base=Whitened(jnp.asarray(Z), stacked([cast(q, jnp.float64) for q in each_q()]))),
    )
    data = dataset(X, np.arange(N) % 3)
    program = jax.make_jaxpr(lambda model: bounds.energy(model, data, N))(model)
    # One for K_uu; those of the C precisions are inside a map. Retries are a loop of their own.
    assert str(program).count("cholesky[") <= 3


def test_a_natural_step_of_several_functions_takes_no_factors_of_several_matrices_at_once():
    q = stacked([cast(each, jnp.float64) for each in each_q()])
    kernel, data = cast(Matern52(LENGTHSCALES[0], 1.3), jnp.float64), dataset(X, np.arange(N) % 3)
    model = Model(kernel, Softmax(C), IndependentLatents(base=Whitened(jnp.asarray(Z), q)))
    stepper = NaturalGradient(constant(0.5), optax.adam(0.01))
    step = lambda model: stepper.step(model, stepper.init(model, N), data, N)[0].posterior.q
    assert not batched_factors(jax.make_jaxpr(step)(model))


def test_a_second_function_that_is_zero_leaves_a_gaussian_likelihood():
    q = MeanPrecision(*(np.asarray(a) for a in (random_q(0, M)[0], np.linalg.inv(random_q(0, M)[1]))))
    known = MeanPrecision(np.zeros(M), 1e14 * np.eye(M))
    kernel = cast(Matern52(LENGTHSCALES[0], 1.3), jnp.float64)
    tiny = stacked([kernel, cast(Matern52(LENGTHSCALES[0], 1e-14), jnp.float64)])
    both = IndependentLatents(
        base=Whitened(jnp.asarray(Z), stacked([cast(a, jnp.float64) for a in (q, known)])), separate=True
    )
    y = rng.normal(size=N)
    data = dataset(X, y)
    two = Model(tiny, cast(Heteroscedastic(0.5), jnp.float64), both)
    one = Model(kernel, cast(Gaussian(0.25), jnp.float64), Whitened(jnp.asarray(Z), cast(q, jnp.float64)))
    ours = bounds.expected_log_likelihood(two, data, N)[0]
    close(ours, bounds.expected_log_likelihood(one, data, N, tight=False)[0], 1e-9)


def test_factorisations_under_vmap_have_the_values_and_derivatives_of_single_ones():
    # They go one after another: two batched LAPACK calls at once hang XLA on two cores.
    A = np.random.default_rng(0).normal(size=(4, 3, 3))
    K = jnp.asarray(A @ A.transpose(0, 2, 1) + np.eye(3))
    ours = lambda K: jnp.sum(jnp.sin(jax.vmap(lambda k: inverse_of_chol(cholesky(k)))(K)))
    plain = lambda K: sum(jnp.sum(jnp.sin(jnp.linalg.inv(jnp.linalg.cholesky(k)))) for k in K)
    close(ours(K), plain(K), 1e-13)
    close(jax.grad(ours)(K), jax.grad(plain)(K), 1e-12)
    assert not batched_factors(jax.make_jaxpr(jax.value_and_grad(ours))(K))


@pytest.mark.parametrize("factor", ["cholesky", "eigh", "qr", "svd", "inv", "slogdet"])
def test_factors_of_several_matrices_at_once_are_seen_wherever_they_are(factor):
    K = jnp.stack([jnp.eye(3), 2 * jnp.eye(3)])
    several = lambda K: jax.tree.leaves(jax.vmap(getattr(jnp.linalg, factor))(K))[0]
    within = {
        "jit": jax.jit(several),
        "map": lambda K: jax.lax.map(several, jnp.stack([K, K])),
        "while": lambda K: jax.lax.while_loop(lambda at: at[1] < 1, lambda at: (several(at[0]), 1), (K, 0))[0],
        "cond": lambda K: jax.lax.cond(K[0, 0, 0] > 0, several, several, K),
    }
    if factor in ("eigh", "qr", "svd", "slogdet"):  # of other shapes than what a loop carries
        within.pop("while")
    for place, function in within.items():
        assert batched_factors(jax.make_jaxpr(function)(K)), place
