"""What a step may cost: a guard against work that comes back, in counts and not in seconds."""

# Fields take floats and NumPy arrays and become JAX arrays in `cast` or under jit; a type checker knows the last alone.
# pyright: reportArgumentType=false, reportCallIssue=false

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from operations import operations

from pseudopoint.bounds import collapsed
from pseudopoint.data import dataset
from pseudopoint.gaussians import MeanChol, MeanPrecision
from pseudopoint.kernels import RBF
from pseudopoint.likelihoods import Bernoulli, Gaussian, Softmax, StudentT
from pseudopoint.likelihoods.multiclass import STEPS
from pseudopoint.linalg.inverses import QUICK
from pseudopoint.optimise.minibatch import NaturalGradient, Optax, constant
from pseudopoint.params import cast, trainable
from pseudopoint.posteriors import Collapsed, IndependentLatents, Model, Whitened
from pseudopoint.recipes.objectives import profile

N, M, B, D, C = 400, 2 * QUICK, 320, 3, 4
X = np.random.default_rng(0).normal(size=(N, D))
# L⁻¹ of two halves: two small solves, two products of half the size.
INVERSE = 2 * (M // 2) ** 3
# (x, ‖x‖², 1) has D + 2 columns; forward, and back to both sides: of K_uB and of K_uu.
KERNEL = 3 * (D + 2) * M * (B + M)


def model(likelihood, q):
    return cast(Model(RBF(np.full(D, 2.0), 1.5), likelihood, Whitened(X[:M], q)), "float64")


def batch(y=None):
    return dataset(X[:B], np.sin(X[:B, 0]) if y is None else y)


def at_most(counted, products):
    """No more than these products, but for M² or B of anything (2 %), and no fewer than nine tenths: a count that lost
    track of some would let anything pass."""
    assert 0.9 * products < counted["products"] < 1.02 * products, counted


@pytest.mark.parametrize("likelihood", [Gaussian(0.1), Bernoulli()])
def test_a_natural_step_with_adam_is_a_few_products_with_the_batch_and_two_factorisations(likelihood):
    stepper = NaturalGradient(constant(0.1), optax.adam(0.01))
    start = model(likelihood, MeanPrecision(np.zeros(M), np.eye(M)))
    y = (X[:B, 0] > 0).astype(float) if isinstance(likelihood, Bernoulli) else None
    counted = operations(lambda *at: stepper.step(*at, batch(y), N), start, stepper.init(start, N))
    # One of M³ is S = L⁻ᵀL⁻¹, two are the slope in K_uu.
    # Tight: A = L⁻¹K, SA; A diag(g) Aᵀ, WAᵀ, L⁻ᵀW.
    # Standard: A, T = L⁻ᵀ(S − I)A; A diag(g) Aᵀ. Of M³: L⁻ᵀ(S − I) and WAᵀ.
    big, small = (5, 3) if likelihood.shrinks else (3, 5)
    at_most(counted, big * M * M * B + small * M**3 + 2 * INVERSE + KERNEL)
    assert counted[f"cholesky {M}"] == 2 and counted[f"solve {QUICK}"] == 4
    assert not any(f"solve {size}" in counted for size in (M, B))


def test_a_step_of_adam_alone_factorises_the_prior_once():
    stepper = Optax(optax.adam(0.01))
    start = model(Gaussian(0.1), MeanChol(np.zeros(M), np.eye(M)))
    counted = operations(lambda *at: stepper.step(*at, batch(), N), start, stepper.init(start, N))
    # The same with S = RRᵀ and its slope for P.
    at_most(counted, 5 * M * M * B + 4 * M**3 + INVERSE + KERNEL)
    assert counted[f"cholesky {M}"] == 1 and counted[f"solve {QUICK}"] == 2


def test_a_likelihood_with_a_majoriser_takes_one_pass_too():
    stepper = NaturalGradient(constant(0.1), optax.adam(0.01))
    start = model(StudentT(0.1), MeanPrecision(np.zeros(M), np.eye(M)))
    counted = operations(lambda *at: stepper.step(*at, batch(), N), start, stepper.init(start, N))
    # As of a log-concave likelihood, with A diag(ω) Aᵀ; and G P⁻¹ G.
    at_most(counted, 4 * M * M * B + 7 * M**3 + 2 * INVERSE + KERNEL)
    # K_uu, P and P_ω; the last is solved for one right-hand side.
    assert counted[f"cholesky {M}"] == 3 and counted[f"solve {QUICK}"] == 4 and counted[f"solve {M}"] == 2


def test_several_latent_functions_share_the_priors_factor():
    stepper = NaturalGradient(constant(0.1), optax.adam(0.01))
    q = jax.tree.map(lambda x: jnp.stack([x] * C), MeanPrecision(jnp.zeros(M), jnp.eye(M)))
    start = cast(Model(RBF(np.full(D, 2.0), 1.5), Softmax(C), IndependentLatents(base=Whitened(X[:M], q))), "float64")
    data = batch(np.arange(B) % float(C))
    counted = operations(lambda *at: stepper.step(*at, data, N), start, stepper.init(start, N))
    # K_uu of all; P and P_ω of each.
    assert counted[f"cholesky {M}"] == 1 + 2 * C
    # The quadrature of E log Σ e^f runs once, for value, slopes and majoriser: where it ends, and its steps.
    assert counted["erf"] == (5 + STEPS) * B * C


def concatenated(function, *at):
    """The longest row of numbers that the compiled function lays end to end."""
    text = jax.jit(function).lower(*at).compile().as_text()
    return max((int(n) for n in re.findall(r" = f64\[(\d+)\]\S* concatenate\(", text)), default=0)


def test_a_step_of_adam_never_lays_all_numbers_end_to_end():
    # XLA fuses what comes before into a concatenation, and then computes it number by number: up to 2.6 times the step.
    stepper, start = Optax(optax.adam(0.01)), model(Gaussian(0.1), MeanChol(np.zeros(M), np.eye(M)))
    assert concatenated(lambda m: trainable(m).vector, start) == len(trainable(start).vector)
    assert concatenated(lambda *at: stepper.step(*at, batch(), N), start, stepper.init(start, N)) < M * M


@pytest.mark.parametrize(("bound", "big", "small"), [("value", 5, 3), ("standard", 3, 5)])
def test_a_collapsed_bound_and_its_gradient_are_a_few_products_with_the_rows(bound, big, small):
    start = cast(Model(RBF(np.full(D, 2.0), 1.5), Gaussian(0.1), Collapsed(X[:M])), "float64")
    numbers, data = trainable(start), batch()

    def count(chunk):
        value = lambda x: getattr(collapsed(numbers.rebuild(x), data, chunk), bound)
        return operations(jax.value_and_grad(value), numbers.vector)

    # A = L⁻¹K, AΛAᵀ; VFE: L⁻ᵀRA; tight: RA, L⁻ᵀĀ, ĀAᵀ. In chunks A is computed once more, and the kernel.
    # Of M³: two for the slope in K_uu, and B⁻¹ for its determinant's; VFE: L⁻ᵀR, RH.
    whole = big * M * M * B + small * M**3 + 2 * INVERSE + KERNEL
    at_most(count(None), whole)
    at_most(count(B // 2), whole + M * M * B + (D + 2) * M * B)
    assert count(None)[f"cholesky {M}"] == 2


def test_a_profile_evaluates_the_prior_once_for_its_inner_loop_and_its_slopes():
    start = model(Bernoulli(), MeanPrecision(np.zeros(M), np.eye(M)))
    data = batch((X[:B, 0] > 0).astype(float))
    numbers = trainable(start, lambda m: m.posterior.q)
    value = lambda x: profile(numbers.rebuild(x), data)[0]
    counted = operations(jax.value_and_grad(value), numbers.vector)
    # K_uu, and P of the q that was found, for S and for its entropy, which XLA makes one.
    assert counted[f"cholesky {M}"] == 3
    # Another attempt at K_uu; in the inner loop P, and the next one.
    assert counted[f"while cholesky {M}"] == 3
