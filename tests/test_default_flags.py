"""Some of the suite again, compiled as users' programs are: kernels, bounds and a mode, against their oracles.

The other tests run programs that were compiled without optimisation (`conftest.py`), as no user's are.
"""

import pytest
import test_kernels
import test_laplace
import test_lattice

pytestmark = pytest.mark.default_flags

# The tests themselves, collected here once more.
test_kernels_agree_with_gpflow = test_kernels.test_agrees_with_gpflow
test_laplace_equals_the_oracle = test_laplace.test_value_and_predictions_equal_the_oracle
test_the_evidence_equals_the_oracle = test_lattice.test_the_evidence_and_the_exact_posterior_equal_the_oracles
test_collapsed_bounds_equal_the_oracles = test_lattice.test_the_collapsed_bounds_and_their_posterior_equal_the_oracles
test_the_elbo_equals_the_oracle = test_lattice.test_elbo_equals_the_oracle_for_any_q_in_both_families
