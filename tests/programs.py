"""What a traced program computes: which factors it takes of several matrices at once."""

from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr

FACTORS = {"cholesky", "eigh", "lu", "qr", "svd", "triangular_solve"}


def batched_factors(program: Any) -> list[str]:
    """The factors of `FACTORS` of more than one matrix, in a program and in all programs within it. jaxlib's functions
    for these can wait for each other for ever (`pseudopoint.linalg.many`)."""
    found = []
    for operation in program.eqns:
        axes = max((getattr(each.aval, "ndim", 0) for each in operation.invars), default=0)
        if operation.primitive.name in FACTORS and axes > 2:
            found.append(str(operation))
        for value in operation.params.values():
            for each in value if isinstance(value, (tuple, list)) else (value,):
                if isinstance(each, (ClosedJaxpr, Jaxpr)):
                    found += batched_factors(getattr(each, "jaxpr", each))
    return found
