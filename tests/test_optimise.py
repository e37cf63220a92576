"""The papers' optimisers by name: one interface, one form of history, and no name that does not do what it says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lattice import close, problem

from pseudopoint import GPClassifier, GPRegressor
from pseudopoint.bounds import collapsed
from pseudopoint.gaussians import AbstractGaussian, MeanChol, MeanLog, MeanPrecision
from pseudopoint.likelihoods import Bernoulli, StudentT
from pseudopoint.optimise.fullbatch import FitError
from pseudopoint.optimise.named import OPTIMISERS, Options, in_coordinates, optimise, standard_elbo, tight_elbo
from pseudopoint.optimise.result import Record
from pseudopoint.params import cast
from pseudopoint.posteriors import Collapsed, Model, Whitened

N, M = 60, 6
PRIOR = MeanPrecision(np.zeros(M), np.eye(M))
KEEP_ALL = {"NGD", "sites"}  # all but q
KEEP_POINTS = {"svi-natural", "svi-SAG", "svi-FG", "svi-L-BFGS-B", "vi-means", "means-L-BFGS-B", "means-PN"} | KEEP_ALL
BY_ROWS = {"vi-means", "means-L-BFGS-B", "means-PN"}  # a Gaussian likelihood alone
P = problem(2, N=N, M=M)


def start(likelihood=None, q: AbstractGaussian = PRIOR):
    """A model with q = p; likelihoods of two classes see the sign."""
    model = P.model()
    likelihood = likelihood or model.likelihood
    y = (P.y > 0).astype(float) if likelihood.support == "classes" else P.y
    posterior = Whitened(P.Z, q, 0.0)
    data = P._replace(y=y, noise=np.zeros(N)).data()
    return cast(Model(model.kernel, likelihood, posterior), jnp.float64), data


def options(name, **more):
    return Options(steps=60 if OPTIMISERS[name].method == "svgp" else 30, batch_size=20, **more)


bound = jax.jit(tight_elbo)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_every_optimiser_climbs_moves_what_it_says_and_keeps_its_records(name):
    model, data = start(q=MeanLog(np.zeros(M), np.zeros((M, M))))  # any coordinates will do
    result = optimise(name, model, data, options(name))
    end = result.model
    assert bound(end, data) > bound(model, data) + 20
    same = lambda part: all(
        np.array_equal(a, b) for a, b in zip(*(jax.tree.leaves(part(m)) for m in (model, end)), strict=True)
    )
    assert same(lambda m: m.posterior.Z) == (name in KEEP_POINTS)
    assert same(lambda m: (m.kernel, m.likelihood)) == (name in KEEP_ALL)
    assert len(result.history) > 0 and all(isinstance(record, Record) for record in result.history)
    assert np.isfinite(np.array(result.history)).all() and result.rejected == 0
    assert (np.diff([record.seconds for record in result.history]) > 0).all()


@pytest.mark.parametrize("name", sorted(set(OPTIMISERS) - BY_ROWS))
def test_those_that_hold_q_take_any_likelihood(name):
    model, data = start(Bernoulli("probit"))
    assert bound(optimise(name, model, data, options(name)).model, data) > bound(model, data) + 3


def test_integrating_q_out_gives_the_best_q():
    model, data = start()
    end = optimise("vi-means", model, data).model
    points = Model(end.kernel, end.likelihood, Collapsed(end.posterior.Z, 0.0))
    close(bound(end, data), collapsed(points, data).value, 1e-9)


@pytest.mark.parametrize(
    ("name", "rate"),
    [("Adam", 0.05), ("L-BFGS", None), ("NGD+Adam", 0.05), ("NGD+Adam, one pass", 0.05), ("t-SVGP", 0.05)],
)
def test_those_that_learn_everything_end_near_each_other(name, rate):
    model, data = start()
    best = bound(optimise("L-BFGS", model, data, Options(steps=400)).model, data)
    steps, rate = (400, None) if name == "L-BFGS" else (1500, 0.05)
    end = bound(optimise(name, model, data, Options(steps=steps, batch_size=N, learning_rate=rate)).model, data)
    assert abs(end - best) < 2


def test_alternation_has_the_best_q_for_where_hyperparameters_are_and_one_pass_lags():
    """γ = 1, all rows, Gaussian likelihood: the natural step of Salimbeni et al. (2018, 5.3) starts from Adam's."""
    model, data = start()

    def gap(name):
        settings = Options(steps=5, batch_size=N, gamma=1.0, tight=False)
        end = optimise(name, model, data, settings).model
        points = Model(end.kernel, end.likelihood, Collapsed(end.posterior.Z, 0.0))
        return float(collapsed(points, data).standard - jax.jit(standard_elbo)(end, data))

    assert abs(gap("NGD+Adam")) < 1e-8 and gap("NGD+Adam, one pass") > 1e-3


def test_the_natural_step_size_is_a_number_or_a_schedule():
    model, data = start()
    ends = [
        optimise("NGD", model, data, Options(steps=1, batch_size=N, gamma=gamma)).model.posterior.q
        for gamma in (1.0, lambda t: 1.0, 0.1)
    ]
    close(ends[0].precision, ends[1].precision, 1e-15)
    assert np.abs(ends[2].precision - ends[0].precision).max() > 1


def test_the_seed_and_only_the_seed_chooses_the_batches():
    model, data = start()
    ends = [optimise("NGD+Adam", model, data, options("NGD+Adam", seed=seed)).model for seed in (0, 0, 1)]
    leaves = [np.concatenate([np.ravel(x) for x in jax.tree.leaves(end)]) for end in ends]
    np.testing.assert_array_equal(leaves[0], leaves[1])
    assert np.abs(leaves[0] - leaves[2]).max() > 1e-6


def test_what_cannot_be_is_said():
    model, data = start(Bernoulli())
    with pytest.raises(FitError, match="Gaussian likelihood, not for Bernoulli: use 'NGD\\+Adam'"):
        optimise("means-PN", model, data)
    with pytest.raises(ValueError, match="optimiser='BFGS' is unknown: use one of NGD, NGD\\+Adam"):
        optimise("BFGS", model, data)
    model, data = start(StudentT(0.3))
    with pytest.raises(FitError, match="log-concave likelihood, not StudentT: use NaturalGradient"):
        optimise("sites", model, data)


def test_another_system_of_coordinates_is_the_same_gaussian():
    model, _ = start()
    moved = in_coordinates(in_coordinates(model, MeanLog), MeanChol)
    assert isinstance(moved.posterior.q, MeanChol)
    close(moved.posterior.q.covariance(), np.eye(M), 1e-14)


# --- Through the estimators ---

X, y = P.X, P.y
QUICK = {"num_inducing": 5, "max_iter": 40, "kernel": "rbf", "batch_size": 20}


@pytest.mark.parametrize("name", ["Adam", "means-PN", "svi-SAG", "sites"])
def test_a_regressor_takes_an_optimiser_by_name_and_the_method_follows(name):
    model = GPRegressor(optimiser=name, **QUICK, effort="fast").fit(X, y)
    assert model.method_ == OPTIMISERS[name].method and repr(name) in model.reason_
    assert model.score(X, y) > 0.5 and np.isfinite(model.bound_) and model.n_iter_ > 0


@pytest.mark.parametrize("labels", [y > 0, np.digitize(y, [-1, 1])], ids=["two", "three"])
def test_a_classifier_does_too(labels):
    model = GPClassifier(optimiser="Adam", **QUICK, effort="fast").fit(X, labels)
    assert model.method_ == "svgp" and model.score(X, labels) > 0.6


def test_an_optimiser_and_a_method_that_do_not_go_together_are_refused():
    with pytest.raises(ValueError, match="optimiser='means-PN' is for method='collapsed', not 'svgp'"):
        GPRegressor(optimiser="means-PN", method="svgp", effort="fast").fit(X, y)
    with pytest.raises(ValueError, match="optimiser='adam' is unknown: use one of auto, NGD"):
        GPRegressor(optimiser="adam", effort="fast").fit(X, y)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="not for Bernoulli"):
        GPClassifier(optimiser="vi-means", effort="fast").fit(X, y > 0)
