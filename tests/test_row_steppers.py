"""Steppers that remember rows: what they sum is exact, whatever the order of rows, bad batches and repeated rows."""

# Fields take floats and NumPy arrays and become JAX arrays in `cast`; a type checker knows the last alone.
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from lattice import close, elbo, problem, random_q, sparse

from pseudopoint import bounds
from pseudopoint.compilation import bucket
from pseudopoint.data import Dataset, dataset, draw, take
from pseudopoint.gaussians import MeanChol, MeanPrecision
from pseudopoint.kernels import Matern52
from pseudopoint.likelihoods import Bernoulli, Gaussian, Heteroscedastic, Poisson, Softmax, StudentT
from pseudopoint.optimise.fullbatch import FitError, converge
from pseudopoint.optimise.minibatch import SAG, NaturalGradient, Optax, Sites, constant
from pseudopoint.optimise.minibatch.loop import fit, start
from pseudopoint.params import cast, trainable
from pseudopoint.posteriors import IndependentLatents, Model, Unwhitened, Whitened, features, prior_factor

N, B, M = 24, 7, 6  # the fourth batch spans two epochs
SITES = Sites()
FIXED = SAG(optax.sgd(0.01))
MOVING = SAG(optax.sgd(0.01), hyper_optimiser=optax.sgd(0.003))

jitted = jax.jit(lambda stepper, *arguments: stepper.step(*arguments[:3], N, *arguments[3:]))


def targets(likelihood, p):
    """Rows of y that the likelihood may have produced."""
    if likelihood.support == "classes":
        return np.clip(np.round(p.y) + 1, 0, likelihood.classes - 1)
    return np.abs(np.round(3 * p.y)) if likelihood.support == "counts" else p.y


def coordinates(cls, C):
    """A q that is neither the prior's nor the optimum's; several have a leading axis."""
    make = MeanPrecision if cls is MeanPrecision else MeanChol
    part = lambda cov: np.linalg.inv(cov) if cls is MeanPrecision else np.linalg.cholesky(cov)
    every = [(mean, part(cov)) for mean, cov in (random_q(c, M) for c in range(C))]
    return make(*(np.stack(parts) if C > 1 else parts[0] for parts in zip(*every, strict=True)))


def setting(stepper, likelihood=None, seed=0):
    """Weighted rows with noise of their own, and a model with any q in the coordinates that the stepper wants."""
    p = problem(seed, weighted=True)
    likelihood = Gaussian(0.15) if likelihood is None else likelihood
    q = coordinates(stepper.rule.moves["q"], likelihood.latents)
    posterior = Whitened(p.Z, q, jitter=0.0)
    posterior = posterior if likelihood.latents == 1 else IndependentLatents(base=posterior)
    data = dataset(p.X, targets(likelihood, p), p.weight, p.noise)
    return cast(Model(Matern52(np.array([0.8, 1.3]), 1.7), likelihood, posterior), jnp.float64), data


def bits(tree):
    return [(x.dtype, x.shape, x.tobytes()) for x in map(np.asarray, jax.tree.leaves(tree))]


def finite(tree):
    return all(np.isfinite(np.asarray(x)).all() for x in jax.tree.leaves(tree))


@jax.jit
def whitened_features(model, X):
    Z = model.posterior.Z
    return features(model.kernel, prior_factor(model.kernel, Z, model.posterior.jitter), Z, X)[0]


def sums(model, data, state):
    """h and H computed afresh from the table, by NumPy."""
    A = np.asarray(whitened_features(model, data.X)).T
    stored = getattr(state, "features", ())
    A = A if isinstance(stored, tuple) else np.asarray(stored)[: len(data)]
    table = np.asarray(state.table)[: len(data)]  # of a bucket
    h = np.einsum("n...,nm->...m", table[:, 0], A)
    H = np.einsum("nk...,nm,nl->k...ml", table[:, 1:], A, A)
    return h, (H if isinstance(state.h, jax.Array) and state.H.ndim == state.h.ndim + 2 else H[0])


# --- Sites ---


@pytest.mark.parametrize("batch_size", [1, 5, 7, 24])
def test_one_epoch_of_sites_is_exact_for_a_gaussian_likelihood_in_any_order(batch_size):
    p = problem(0, weighted=True)
    model, data = setting(SITES)
    best = sparse(p.sparse(), data, p.Xs)
    for seed in range(3):
        steps = -(-N // batch_size)
        state, _ = fit(start(model, SITES, data, seed), SITES, data, steps=steps, batch_size=batch_size, segment=steps)
        reached = elbo(state.model, data, p.Xs)
        close(reached.tight, best.tight, 1e-9)
        close(reached.moments, best.moments, 1e-9)


LIKELIHOODS = {
    "bernoulli": Bernoulli("logit"),
    "poisson": Poisson(1.7),
    "softmax": Softmax(3),
    "heteroscedastic": Heteroscedastic(0.4),
}
EACH_LIKELIHOOD = pytest.mark.parametrize("likelihood", LIKELIHOODS.values(), ids=LIKELIHOODS)


@EACH_LIKELIHOOD
def test_sites_of_the_whole_table_are_a_full_natural_step_and_converge_batch_by_batch(likelihood):
    model, data = setting(SITES, likelihood)
    natural = NaturalGradient(constant(1.0))
    step = jax.jit(lambda stepper, model: stepper.step(model, stepper.init(model, N), data, N)[::2])
    (ours, info), (truth, true_info) = step(SITES, model), step(natural, model)
    close(ours.posterior.q.mean, truth.posterior.q.mean, 1e-10)
    close(ours.posterior.q.precision, truth.posterior.q.precision, 1e-10)
    close(info.bound, true_info.bound, 1e-10)
    assert not info.rejected
    state, history = fit(start(model, SITES, data), SITES, data, steps=600, batch_size=B, segment=100)
    assert history[-1].rejected == 0 and finite(state)
    # A natural step over all rows stays where 175 epochs have led.
    end, there = state.model.posterior.q, step(natural, state.model)[0].posterior.q
    close(end.mean, there.mean, 1e-8)
    close(end.precision, there.precision, 1e-8)
    assert float(step(natural, state.model)[1].bound) > float(info.bound) + 1
    h, H = sums(model, data, state.stepper_state.rule)
    close(state.stepper_state.rule.h, h, 1e-10)
    close(state.stepper_state.rule.H, H, 1e-10)


def bernoulli_table():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(2000, 2))
    y = rng.uniform(size=2000) < 1 / (1 + np.exp(-2 * np.sin(2 * X[:, 0]) - X[:, 1]))
    q = MeanPrecision(np.zeros(40), np.eye(40))
    model = Model(Matern52(np.ones(2), 2.0), Bernoulli("logit"), Whitened(X[:40], q))
    return cast(model, jnp.float64), dataset(X, y.astype(float))


def test_three_epochs_of_sites_are_within_a_hundredth_of_a_nat_for_a_bernoulli_likelihood_and_sums_do_not_drift():
    model, data = bernoulli_table()
    best = jax.jit(lambda model: bounds.elbo(converge(model, data), data, 2000).value)(model)
    value = jax.jit(lambda model: bounds.elbo(model, data, 2000).value)
    run = partial(fit, stepper=SITES, data=data, batch_size=100, segment=60)
    state, history = run(start(model, SITES, data), steps=60)
    assert history[-1].rejected == 0 and -1e-5 < best - value(state.model) < 1e-2  # 7e-6
    state, _ = run(state, steps=240)
    assert abs(best - value(state.model)) < 1e-5  # what `converge` leaves
    h, H = sums(model, data, state.stepper_state.rule)
    close(state.stepper_state.rule.h, h, 1e-10)
    close(state.stepper_state.rule.H, H, 1e-10)


def test_damped_sites_are_averages_of_old_and_new_ones():
    model, data = setting(SITES)
    damped = Sites(constant(0.25))
    batch, rows = take(data, np.arange(B)), np.arange(B)
    _, full, _ = jitted(SITES, model, SITES.init(model, N), batch, rows)
    _, part, info = jitted(damped, model, damped.init(model, N), batch, rows)
    close(part.rule.table, 0.25 * full.rule.table, 1e-14)
    close(part.rule.H, 0.25 * full.rule.H, 1e-14)
    assert float(info.step_size) == 0.25


REFUSED = {
    "not concave": (SITES, lambda m: m.likelihood, StudentT(0.3, 4.0), "log-concave likelihood, not StudentT"),
    "coordinates": (SITES, lambda m: m.posterior.q, coordinates(MeanChol, 1), "MeanPrecision coordinates"),
    "of SAG": (FIXED, lambda m: m.posterior.q, coordinates(MeanPrecision, 1), "MeanChol coordinates"),
    "unwhitened": (
        SITES,
        lambda m: m.posterior,
        Unwhitened(np.ones((M, 2)), coordinates(MeanPrecision, 1)),
        "Whitened",
    ),
    "separate": (
        FIXED,
        lambda m: m.posterior,
        IndependentLatents(base=Whitened(np.ones((M, 2)), coordinates(MeanChol, 2)), separate=True),
        "one kernel for all, with q in MeanChol coordinates: use Optax",
    ),
}


@pytest.mark.parametrize(("stepper", "where", "value", "message"), REFUSED.values(), ids=REFUSED)
def test_what_rows_cannot_say_is_refused_at_the_start(stepper, where, value, message):
    model, _ = setting(stepper)
    with pytest.raises(TypeError, match=message):
        stepper.init(eqx.tree_at(where, model, value), N)


@pytest.mark.parametrize("stepper", [SITES, FIXED], ids=["sites", "sag"])
def test_a_batch_must_say_which_rows_of_which_table_it_has(stepper):
    model, data = setting(stepper)
    batch = take(data, np.arange(B))
    with pytest.raises(ValueError, match="needs the numbers of a batch's rows"):
        stepper.step(model, stepper.init(model, N), batch, N)
    with pytest.raises(ValueError, match="a table of 30 rows, not of 24"):
        stepper.step(model, stepper.init(model, 30), batch, N, jnp.arange(B))


@pytest.mark.parametrize("stepper", [SITES, FIXED], ids=["sites", "sag"])
def test_sums_that_hold_for_other_hyperparameters_are_not_used(stepper):
    model, data = setting(stepper)
    moved = eqx.tree_at(lambda m: m.kernel.lengthscale, model, 1.01 * model.kernel.lengthscale)
    state = start(model, stepper, data)
    state = eqx.tree_at(lambda s: s.model, state, moved)
    with pytest.raises(FitError, match="had to be rejected"):
        fit(state, stepper, data, steps=4, batch_size=B, segment=4)


# --- SAG ---


@jax.jit
def gradient(model, data):
    """∂ bound/∂m and ∂ bound/∂L over all rows."""
    at = lambda q: bounds.elbo(eqx.tree_at(lambda m: m.posterior.q, model, q), data, len(data)).value
    slope = jax.grad(at)(model.posterior.q)
    return slope.mean, jnp.tril(slope.chol)


# An optimiser that stands still and remembers the last gradient.
STILL = optax.chain(optax.trace(0.0), optax.scale(0.0))


@pytest.mark.parametrize("hyper_optimiser", [None, optax.sgd(0.0)], ids=["q", "all"])
@pytest.mark.parametrize(
    "likelihood", [Gaussian(0.15), StudentT(0.3, 4.0), Heteroscedastic(0.4)], ids=["gaussian", "student_t", "two"]
)
def test_once_every_row_was_seen_the_average_is_the_gradient_over_all_rows(likelihood, hyper_optimiser):
    stepper = SAG(STILL, hyper_optimiser)
    model, data = setting(stepper, likelihood)
    state, _ = fit(start(model, stepper, data), stepper, data, steps=4, batch_size=B, segment=4)
    inner = state.stepper_state.rule
    assert inner.seen[:N].all() and len(np.unique(draw(N, B, 0, 0, 4))) == N
    for ours, truth in zip(inner.optimiser[0].trace, gradient(model, data), strict=True):
        close(-ours, truth, 1e-10)
        assert np.abs(truth).max() > 1


def test_the_first_step_is_the_plain_one_of_its_batch():
    # Rows not seen are taken to be like those that are; the other numbers' step is the plain one at any time.
    model, data = setting(MOVING, Bernoulli("probit"))
    rows = np.array([3, 1, 4, 15, 9, 2, 6])
    plain = Optax(optax.sgd(0.01))
    ours, _, info = jitted(SAG(optax.sgd(0.01), optax.sgd(0.01)), model, start_of(model), take(data, rows), rows)
    truth, _, true_info = jitted(plain, model, plain.init(model, N), take(data, rows))
    close(trainable(ours).vector, trainable(truth).vector, 1e-12)
    close(info.bound, true_info.bound, 1e-12)


def start_of(model):
    return SAG(optax.sgd(0.01), optax.sgd(0.01)).init(model, N)


def test_sums_with_moving_features_are_those_of_the_stored_ones_and_the_bound_rises():
    stepper = SAG(optax.adam(0.02), hyper_optimiser=optax.adam(0.01))
    model, data = setting(stepper, Heteroscedastic(0.4))
    state, history = fit(start(model, stepper, data), stepper, data, steps=400, batch_size=B, segment=50)
    inner = state.stepper_state.rule
    h, H = sums(state.model, data, inner)
    close(inner.h, h, 1e-10)
    close(inner.H, H, 1e-10)
    # They are not the features of the last hyperparameters, which could not be subtracted.
    assert np.abs(inner.features[:N] - whitened_features(state.model, data.X).T).max() > 1e-4
    assert history[-1].rejected == 0 and history[-1].bound > history[0].bound + 10


def test_the_average_gradient_converges_at_a_constant_rate_where_the_plain_one_does_not():
    model, data = setting(FIXED, Bernoulli("logit"))
    plain = Optax(optax.sgd(0.02), (lambda m: m.kernel, lambda m: m.posterior.Z))
    average = SAG(optax.sgd(0.02))
    norms = {}
    for stepper in (average, plain):
        state, history = fit(start(model, stepper, data), stepper, data, steps=3000, batch_size=B, segment=600)
        assert history[-1].rejected == 0
        norms[stepper] = max(float(np.abs(slope).max()) for slope in gradient(state.model, data))
    assert norms[average] < 1e-6 and norms[plain] > 1e-2


# --- Both: bad batches, repeated rows, pauses, float32 ---

BOTH = pytest.mark.parametrize("stepper", [SITES, FIXED, MOVING], ids=["sites", "sag", "sag_rest"])


def under_way(stepper, likelihood=None):
    """A model and a state after a few batches, the rows of the next and the data."""
    model, data = setting(stepper, likelihood)
    state, _ = fit(start(model, stepper, data), stepper, data, steps=2, batch_size=B, segment=2)
    return state.model, state.stepper_state, draw(N, B, 0, 2, 1)[0], data


@BOTH
def test_a_bad_batch_leaves_q_and_the_table_as_they_were(stepper):
    model, state, rows, data = under_way(stepper)
    before = bits((model, state._replace(guard=0)))
    for field, value in [("y", np.nan), ("X", np.nan), ("weight", np.inf), ("y", 1e200)]:
        array = np.array(getattr(data, field))
        array[rows[3]] = value
        bad = take(eqx.tree_at(lambda d, name=field: getattr(d, name), data, array), rows)
        new, after, info = jitted(stepper, model, state, bad, rows)
        assert info.rejected and float(after.guard.scale) == 0.5 and int(after.guard.steps) == 3
        assert bits((new, after._replace(guard=0))) == before
    # The next step is half as long: of sites, of q, of the hyperparameters.
    reached = (
        (lambda model, state: state.rule.table) if stepper is SITES else (lambda model, state: trainable(model).vector)
    )
    full, full_state, _ = jitted(stepper, model, state, take(data, rows), rows)
    half, half_state, info = jitted(stepper, new, after, take(data, rows), rows)
    assert not info.rejected and finite((half, half_state)) and float(half_state.guard.scale) == 0.55
    way = reached(full, full_state) - reached(model, state)
    close(reached(half, half_state) - reached(model, state), 0.5 * way, 1e-12)
    assert np.abs(way).max() > 1e-3


@BOTH
def test_a_row_that_a_batch_holds_twice_is_exchanged_once(stepper):
    model, state, _, data = under_way(stepper, Bernoulli("logit"))
    rows = np.array([5, 0, 5, 11, 5, 0, 23])
    new, after, info = jitted(stepper, model, state, take(data, rows), rows)
    assert not info.rejected
    h, H = sums(model, data, after.rule)
    close(after.rule.h, h, 1e-12)
    close(after.rule.H, H, 1e-12)
    # The table is that after the distinct rows, and for q alone so is q.
    once = np.unique(rows)
    alone, expected, _ = jitted(stepper, model, state, take(data, once), once)
    close(after.rule.table, expected.rule.table, 1e-12)
    if stepper is not MOVING:
        close(new.posterior.q.mean, alone.posterior.q.mean, 1e-12)
    assert (
        np.abs(after.rule.table - state.rule.table)[once].max(axis=1).min() > 1e-3
    )  # all of them had something new to say


@BOTH
def test_a_resumed_fit_is_an_uninterrupted_one_bit_for_bit(stepper):
    model, data = setting(stepper, Bernoulli("logit"))
    run = partial(fit, stepper=stepper, data=data, batch_size=B, segment=5)
    whole, _ = run(start(model, stepper, data), steps=15)
    part, _ = run(start(model, stepper, data), steps=5)
    resumed, _ = run(part, steps=10)
    assert bits(resumed) == bits(whole) and resumed.step == 15 and whole.rejected == 0


@pytest.mark.parametrize("stepper", [SITES, MOVING], ids=["sites", "sag_rest"])
def test_float32_follows_float64(stepper):
    ends = []
    for dtype in (jnp.float64, jnp.float32):
        model, data = setting(stepper, Bernoulli("logit"))
        model, data = cast(model, dtype), cast(data, dtype)
        state, _ = fit(start(model, stepper, data), stepper, data, steps=15, batch_size=B, segment=5)
        floating = [x for x in jax.tree.leaves(state) if jnp.issubdtype(x.dtype, jnp.floating)]
        assert finite(state) and all(x.dtype == dtype for x in floating)
        ends.append(state.model.posterior.q)
    close(ends[1].mean, ends[0].mean, 1e-4)
    close(ends[1].covariance(), ends[0].covariance(), 1e-4)


def test_three_classes_by_the_average_gradient():
    stepper = SAG(optax.sgd(0.02))
    model, data = setting(stepper, Softmax(3))
    state, history = fit(start(model, stepper, data), stepper, data, steps=300, batch_size=B, segment=50)
    assert history[-1].rejected == 0 and state.stepper_state.rule.table.shape == (bucket(N), 2, 3)
    assert max(float(np.abs(slope).max()) for slope in gradient(state.model, data)) < 0.1
    h, H = sums(model, data, state.stepper_state.rule)
    close(state.stepper_state.rule.h, h, 1e-10)
    close(state.stepper_state.rule.H, H, 1e-10)


def test_a_row_s_weight_is_so_many_rows():
    # Weight 3 and three copies say the same, and a weight of 0 says nothing.
    _, data = setting(SITES, Bernoulli("logit"))
    weight = np.asarray(data.weight) * (np.arange(N) % 4 > 0)
    weighted = Dataset(data.X, data.y, weight, data.noise)
    copies = np.repeat(np.arange(N), weight.astype(int))
    repeated = dataset(np.asarray(data.X)[copies], np.asarray(data.y)[copies])
    model, _ = setting(SITES, Bernoulli("logit"))
    step = jax.jit(lambda model, rows: SITES.step(model, SITES.init(model, len(rows)), rows, len(rows))[0])
    one, two = step(model, weighted), step(model, repeated)
    close(one.posterior.q.mean, two.posterior.q.mean, 1e-12)
    close(one.posterior.q.precision, two.posterior.q.precision, 1e-12)
