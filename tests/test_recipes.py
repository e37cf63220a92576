"""Which method a table gets, by its rows and its likelihood."""

import numpy as np
import pytest

from pseudopoint.likelihoods import Bernoulli, Gaussian, Heteroscedastic, Softmax
from pseudopoint.recipes import choose_method


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
