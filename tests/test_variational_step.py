"""`VariationalStep` with a rule from outside the package: what a family has to write, and what it gets for it."""

# Fields take floats and NumPy arrays and become JAX arrays in `cast`; a type checker knows the last alone.
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from lattice import close, problem

from pseudopoint.bounds import elbo
from pseudopoint.data import draw, take
from pseudopoint.gaussians import MeanCovariance, MeanPrecision
from pseudopoint.optimise.minibatch import AbstractRule, Context, Proposal, VariationalStep, constant, with_q
from pseudopoint.optimise.minibatch.loop import fit, start
from pseudopoint.params import trainable
from pseudopoint.posteriors import IndependentLatents, Model, Whitened

N, M, B = 24, 6, 8
P = problem(0)


class MeanAscent(AbstractRule):
    """m ← m + γ S ∂L/∂m, the natural gradient of the mean alone; the state counts the steps that were accepted, and
    `written` remembers the last batch's bound."""

    name = "MeanAscent"
    moves = {"q": MeanCovariance}
    family = Whitened
    one_kernel = True

    def init(self, model: Model, num_data: int) -> dict:
        """No step yet."""
        return {"accepted": jnp.zeros((), int), "bound": jnp.zeros(())}

    def update(self, state: dict, at: Context) -> Proposal:
        """One pass over the batch."""
        q = at.model.posterior.q

        def bound(parts, mean):
            model = with_q(at.hyper.rebuild(parts), MeanCovariance(mean, q.cov))
            return elbo(model, at.batch, at.num_data).choose(at.tight)

        value, (gradient, dm) = jax.value_and_grad(bound, (0, 1))(at.hyper.parts, q.mean)
        mean = q.mean + at.gamma * q.cov @ dm
        new = state | {"accepted": state["accepted"] + 1}
        values = (MeanCovariance(mean, q.cov),)
        return Proposal(values, new, value, gradient, jnp.linalg.norm(dm), checked=mean, written=value)

    def write(self, state, proposal, accepted):
        """The bound of the last accepted batch."""
        return state | {"bound": jnp.where(accepted, proposal.written, state["bound"])}


def model(q=None) -> Model:
    return P.model(Whitened(P.Z, q or MeanCovariance(np.zeros(M), 0.05 * np.eye(M)), jitter=0.0))


def batch(step=0):
    return take(P.data(), draw(N, B, 0, step, 1)[0])


def bits(tree):
    return [(x.dtype, x.shape, x.tobytes()) for x in map(np.asarray, jax.tree.leaves(tree))]


jitted = jax.jit(lambda stepper, model, state, batch: stepper.step(model, state, batch, N))
POINTS, KERNEL = (lambda m: m.posterior.Z), (lambda m: m.kernel)
ALONE = VariationalStep(MeanAscent(), constant(0.5))
WITH_ADAM = VariationalStep(MeanAscent(), constant(0.5), optax.adam(0.02), (POINTS,))


def test_it_trains_a_model_in_the_loop_to_where_the_mean_has_no_gradient():
    begin = start(model(), ALONE, P.data())
    end, history = fit(begin, ALONE, P.data(), steps=1000, batch_size=N, segment=500)
    assert history[-1].rejected == 0 and history[-1].gradient_norm < 1e-6
    assert bits(end.model.posterior.q.cov) == bits(begin.model.posterior.q.cov)
    assert bits((KERNEL(end.model), POINTS(end.model))) == bits((KERNEL(begin.model), POINTS(begin.model)))
    assert int(end.stepper_state.rule["accepted"]) == 1000
    value = lambda m: float(elbo(m, P.data(), N).value)
    close(history[-1].bound, value(end.model), 1e-6)
    assert value(end.model) > value(begin.model) + 10


def test_one_step_is_the_rule_s_and_the_optimiser_s_and_is_reported():
    stepper = VariationalStep(MeanAscent(), constant(0.25), optax.sgd(0.01), (POINTS,))
    here = model(MeanCovariance(np.linspace(-1, 1, M), 0.1 * np.eye(M)))
    every, rows = trainable(here, lambda m: m.posterior.q, POINTS), jax.tree.map(jnp.asarray, batch())

    @jax.jit
    def bound(parts, mean):
        moved = with_q(every.rebuild(parts), MeanCovariance(mean, here.posterior.q.cov))
        return elbo(moved, rows, N).value

    value, (gradient, dm) = jax.value_and_grad(bound, (0, 1))(every.parts, here.posterior.q.mean)
    new, state, info = jitted(stepper, here, stepper.init(here, N), batch())
    close(new.posterior.q.mean, here.posterior.q.mean + 0.25 * 0.1 * dm, 1e-12)
    moved = trainable(new, lambda m: m.posterior.q, POINTS).parts
    for after, before, slope in zip(moved, every.parts, gradient, strict=True):
        close(after, before + 0.01 * slope, 1e-12)
    close(info.bound, value, 1e-12)
    close(info.gradient_norm, jnp.sqrt(sum(jnp.sum(g**2) for g in gradient)), 1e-12)
    assert float(info.step_size) == 0.25 and not info.rejected and bits(POINTS(new)) == bits(POINTS(here))
    close(state.rule["bound"], value, 1e-12)
    # Without an optimiser the report is of the rule's own gradient, and the rule's step is the same.
    alone = VariationalStep(MeanAscent(), constant(0.25))
    other, _, info = jitted(alone, here, alone.init(here, N), batch())
    close(info.gradient_norm, jnp.linalg.norm(dm), 1e-12)
    close(other.posterior.q.mean, new.posterior.q.mean, 1e-12)
    assert bits((other.kernel, other.likelihood)) == bits((here.kernel, here.likelihood))


def test_a_bad_batch_is_rejected_and_the_next_step_is_half_as_long():
    here, state = model(), WITH_ADAM.init(model(), N)
    here, state, first = jitted(WITH_ADAM, here, state, batch(0))
    bad = batch(1)
    bad = eqx.tree_at(lambda b: b.y, bad, np.where(np.arange(B) == 3, np.nan, bad.y))
    same, after, info = jitted(WITH_ADAM, here, state, bad)
    assert info.rejected and not first.rejected
    assert bits((same, after._replace(guard=0))) == bits((here, state._replace(guard=0)))
    assert float(after.guard.scale) == 0.5 and int(after.guard.steps) == 2
    full, full_state, _ = jitted(WITH_ADAM, here, state, batch(2))
    half, half_state, info = jitted(WITH_ADAM, same, after, batch(2))
    assert not info.rejected and float(info.step_size) == 0.25 and int(half_state.rule["accepted"]) == 2
    change = lambda new: new.posterior.q.mean - here.posterior.q.mean
    close(change(half), 0.5 * change(full), 1e-12)
    close(half.kernel.variance, here.kernel.variance * np.sqrt(full.kernel.variance / here.kernel.variance), 1e-12)
    assert float(half_state.guard.scale) == 0.55 and float(full_state.guard.scale) == 1.0


def test_what_is_frozen_stays_and_all_else_moves():
    stepper = VariationalStep(MeanAscent(), constant(0.5), optax.adam(0.02), (KERNEL,))
    here = model()
    new, _, info = jitted(stepper, here, stepper.init(here, N), batch())
    assert not info.rejected and bits(KERNEL(new)) == bits(KERNEL(here))
    assert bits(POINTS(new)) != bits(POINTS(here)) and bits(new.likelihood) != bits(here.likelihood)


@pytest.mark.parametrize(
    "posterior",
    [
        Whitened(P.Z, MeanPrecision(np.zeros(M), np.eye(M))),
        IndependentLatents(
            base=Whitened(P.Z, MeanCovariance(np.zeros((2, M)), np.stack([np.eye(M)] * 2))), separate=True
        ),
    ],
    ids=["coordinates", "separate"],
)
def test_a_posterior_that_the_rule_does_not_move_is_refused_in_a_sentence(posterior):
    sentence = (
        "MeanAscent needs the posterior Whitened, or IndependentLatents of it with one kernel for all, with q in "
        "MeanCovariance coordinates: use Optax for others"
    )
    with pytest.raises(TypeError, match=sentence):
        ALONE.init(P.model(posterior), N)
