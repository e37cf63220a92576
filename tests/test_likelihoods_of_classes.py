"""Likelihoods of classes: the conformance suite."""

import pytest
from conformance import LIKELIHOOD_CHECKS, LIKELIHOODS, LIKELIHOODS_OF_CLASSES


@pytest.mark.parametrize("check", LIKELIHOOD_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", LIKELIHOODS_OF_CLASSES)
def test_conformance(name, check):
    check(LIKELIHOODS[name]())
