"""Which method a table gets, by its rows and its likelihood; and where a sparse fit starts."""

# Parts of kernels are reached by name, which a type checker cannot follow.
# pyright: reportAttributeAccessIssue=false

import jax
import numpy as np
import pytest

from pseudopoint.data import dataset
from pseudopoint.datasets import load
from pseudopoint.initial import named_kernel, robust
from pseudopoint.likelihoods import Bernoulli, Gaussian, Heteroscedastic, Softmax
from pseudopoint.params import cast
from pseudopoint.posteriors import Model
from pseudopoint.recipes import Settings, choose_method, starts
from pseudopoint.recipes.prior import LengthscalePrior


@pytest.mark.parametrize(
    ("likelihood", "ends"),
    [
        (Gaussian(0.1), [("exact", 1000), ("collapsed", 50_000), ("svgp", np.inf)]),
        (Bernoulli(), [("collapsed", 5000), ("svgp", np.inf)]),
        (Heteroscedastic(), [("collapsed", 500), ("svgp", np.inf)]),
        (Softmax(3), [("collapsed", 222), ("svgp", np.inf)]),
        (Softmax(26), [("collapsed", 2), ("svgp", np.inf)]),
    ],
    ids=lambda x: type(x).__name__,
)
def test_small_tables_take_full_passes_and_large_ones_minibatches(likelihood, ends):
    first = 1
    for method, last in ends:
        for N in (first, min(last, 10**9)):
            chosen, why = choose_method(int(N), likelihood)
            assert chosen == method and f"{int(N)} rows" in why
        first = last + 1


def naval():
    """2,000 rows of NAVAL, standardised, and a model's start: an exact fit of 500 rows takes the variance to 200."""
    table = load("naval")
    rows = np.random.default_rng(0).permutation(len(table.y))[:2000]
    X, y = (np.asarray(a, float)[rows] for a in (table.X, table.y))
    X, y = X[:, X.std(0) > 1e-9], (y - y.mean()) / y.std()
    X = (X - X.mean(0)) / X.std(0)
    kernel = named_kernel("matern52", *robust(X, y), X.shape[1])
    return cast(Model(kernel, Gaussian(0.1)), "float64"), dataset(X, y, dtype="float64")


def test_a_warm_start_keeps_back_what_few_rows_cannot_know():
    with jax.enable_x64(True):
        model, data = naval()
        warm = starts._warm(model, data, Settings(), LengthscalePrior.around(model.kernel, Settings()))
    assert warm.kernel.variance <= model.kernel.variance
    assert warm.likelihood.variance >= model.likelihood.variance
    assert (np.asarray(warm.kernel.lengthscale) <= 2 * np.sqrt(data.X.shape[1])).all()
    assert np.ptp(np.log(warm.kernel.lengthscale)) > 0.5  # which columns matter it does know


def test_points_move_alone_before_hyperparameters_do(monkeypatch):
    climbs, maximise = [], starts.maximise

    def watched(objective, prior, model, data, *rest, **options):
        result = maximise(objective, prior, model, data, *rest, **options)
        climbs.append((model, result.model))
        return result

    monkeypatch.setattr(starts, "maximise", watched)
    with jax.enable_x64(True):
        model, data = naval()
        prior = LengthscalePrior.around(model.kernel, Settings())
        starts.start_sparse(model, data, Settings(num_inducing=20), prior)
    assert len(climbs) == 6  # three placements, twice each
    for i, (before, after) in enumerate(climbs):
        moves = lambda get, before=before, after=after: not np.allclose(get(before), get(after), rtol=1e-12)
        assert moves(lambda m: m.posterior.Z)
        together = i % 2 == 1
        for number in (lambda m: m.kernel.lengthscale, lambda m: m.kernel.variance, lambda m: m.likelihood.variance):
            assert moves(number) is together
