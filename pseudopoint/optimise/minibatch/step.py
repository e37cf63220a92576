"""A step on a minibatch: (model, state, batch) ↦ (model, state, info).

`VariationalStep` is the step of every posterior family. It owns what they share: the optax step of the hyperparameters,
the guard, and the report. A `Rule` is what a family adds: how its variational numbers move.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, Bool, Int

from ...data import Count, Dataset
from ...linalg import Scalar
from ...params import Parts, Trainable, trainable
from ...posteriors import AbstractPosterior, IndependentLatents, Model
from ..transformation import GradientTransformation
from .schedules import Schedule

__all__ = [
    "AbstractRule",
    "AbstractStepper",
    "BatchEnergy",
    "Context",
    "Guard",
    "Info",
    "Proposal",
    "StepState",
    "VariationalStep",
]

Places = Int[Array, " B"]

# A gradient R times as long as the others stalls Adam for 2000 log(√0.001 R) steps, by its second moment's memory of
# 1,000 steps: at R = 1e6 for 20,000, more than most fits have. R up to 60 was seen in good fits.
MAX_GROWTH = 1e6


class Info(NamedTuple):
    """The report of a step: the batch's estimate of the bound before the step, in nats for all rows; the norm of the
    gradient in the hyperparameters, or in the variational numbers where an optax optimiser does not move the former or
    does move the latter; γ times the guard's scale; and whether the step was rejected."""

    bound: Scalar
    gradient_norm: Scalar
    step_size: Scalar
    rejected: Bool[Array, ""]


class BatchEnergy(NamedTuple):
    """What is known of a batch whose rows are elsewhere (`RowSlopes`): the value of E's part of the rows and its
    gradient in the numbers of the model, and that of the minorant's part in S. A batch of B rows counts N/B times."""

    value: Scalar
    slopes: Any
    minorant: Any
    scale: Any


class Guard(NamedTuple):
    """The number of steps so far; `scale` ≤ 1, which multiplies every step; and `norm`, the norm of the last gradient
    that went to an optimiser, 0 if there was none."""

    steps: Int[Array, ""]
    scale: Scalar
    norm: Scalar

    @staticmethod
    def start(dtype: Any) -> "Guard":
        """Before the first step: full steps."""
        return Guard(jnp.zeros((), int), jnp.ones((), dtype), jnp.zeros((), dtype))

    def is_plausible(self, norm: Any) -> Bool[Array, ""]:
        """Whether a gradient is at most `MAX_GROWTH` times as long as the last one.

        The last one counts even if its step was rejected: where the next batch confirms a jump, it is the model's
        gradient and has to be followed.
        """
        return (self.norm == 0) | (norm <= MAX_GROWTH * self.norm)

    def accept_or_revert(self, good: Bool[Array, ""], new: Any, old: Any, norm: Any = 0.0) -> tuple[Any, "Guard"]:
        """`new` if the step is good, and `old` otherwise, with the guard of the next step: a bad step halves `scale`, a
        good one lets it grow by a tenth, up to 1. `norm` is that of the gradient that went to an optimiser."""
        scale = jnp.where(good, jnp.minimum(1.0, 1.1 * self.scale), 0.5 * self.scale).astype(self.scale.dtype)
        norm = jnp.where(jnp.isfinite(norm), norm, self.norm).astype(self.norm.dtype)
        choose = lambda a, b: a if a is b else jnp.where(good, a, b)
        return jax.tree.map(choose, new, old), Guard(self.steps + 1, scale, norm)


def all_finite(tree: Any) -> Bool[Array, ""]:
    """Whether every number of a tree is finite. It tests one sum: a sum that overflows counts as not finite."""
    return jnp.isfinite(sum((jnp.sum(leaf) for leaf in jax.tree.leaves(tree)), jnp.zeros(())))


class AbstractStepper(eqx.Module):
    """One way to improve a model from one batch."""

    @property
    def by_energy(self) -> bool:
        """Whether the sums of a `BatchEnergy` are all that a step needs of its batch."""
        return False

    @abstractmethod
    def init(self, model: Model, num_data: int) -> Any:
        """The state before the first step, for a table of `num_data` rows. Raises TypeError or ValueError where the
        stepper cannot move such a model."""

    @abstractmethod
    def step(
        self, model: Model, state: Any, batch: Dataset, num_data: Count, rows: Places | None = None
    ) -> tuple[Model, Any, Info]:
        """One step on one batch out of `num_data` rows.

        `rows` [B] are the batch's row numbers, for steppers that remember rows; None says that the batch is the whole
        table, in order.
        """


class Context(NamedTuple):
    """What a rule is given: the hyperparameters, which are all numbers but its own and the frozen ones; the batch; γ
    already multiplied by the guard's scale; and the guard."""

    hyper: Trainable
    batch: Any  # a Dataset, or a BatchEnergy
    num_data: Count
    rows: Places | None
    gamma: Any
    guard: Guard
    tight: bool

    @property
    def model(self) -> Model:
        """The model before the step."""
        return self.hyper.model


class Proposal(NamedTuple):
    """What a rule proposes.

    `values` are the new values of the fields in `moves`, in that order, and `state` is the rule's new state. `bound` is
    the batch's estimate before the step, `gradient` is ∂ bound/∂(hyperparameters), `norm` that of the variational
    gradient. The step is rejected unless `checked` is finite and `acceptable` holds; `checked` has to cover `values`
    and `state`: if it is finite, so are they. `written` is what `write` needs.
    """

    values: tuple
    state: Any
    bound: Scalar
    gradient: Parts
    norm: Any = 0.0
    checked: Any = ()
    acceptable: Any = True
    written: Any = ()


class AbstractRule(eqx.Module):
    """How the variational numbers of one posterior family move. `name` is the rule's name in messages.

    `moves` names the fields of `posterior.one` that the rule moves itself, with the type that each must have (`object`:
    any). `family` is the posterior that it needs (None: any), and `one_kernel` says that latent functions must share
    their kernel. `optimises` says that the rule passes its own gradient to an optax optimiser: then the guard watches
    this gradient too. `by_energy` says that all it asks of the batch are `energy_gradients`.
    """

    name: ClassVar[str]
    moves: ClassVar[dict[str, type]] = {}
    family: ClassVar[type[AbstractPosterior] | None] = None
    one_kernel: ClassVar[bool] = False
    optimises: ClassVar[bool] = False
    by_energy: ClassVar[bool] = False

    @abstractmethod
    def init(self, model: Model, num_data: int) -> Any:
        """The rule's state before the first step."""

    @abstractmethod
    def update(self, state: Any, at: Context) -> Proposal:
        """The step that the rule proposes for one batch."""

    def carry(self, old: Model, new: Model, proposal: Proposal) -> Proposal:
        """The proposal after the hyperparameters have moved from those of `old` to those of `new`: by default they have
        no influence on it."""
        return proposal

    def write(self, state: Any, proposal: Proposal, accepted: Bool[Array, ""]) -> Any:
        """The rule's state once the guard has decided, for a table of all rows that a step changes in a few places:
        writing there takes O(B), a choice between two tables would take O(N)."""
        return state

    def fields(self, model: Model) -> list:
        """What the rule moves itself."""
        return [getattr(model.posterior.one, name) for name in self.moves]

    def placed(self, model: Model, values: Sequence) -> Model:
        """The model with these values of `fields`."""
        return eqx.tree_at(self.fields, model, list(values))

    @classmethod
    def stepper(
        cls,
        gamma: Schedule,
        hyper_optimiser: GradientTransformation | None = None,
        frozen: tuple[Callable, ...] = (),
        tight: bool = True,
        **fields: Any,
    ) -> "VariationalStep":
        """The `VariationalStep` by this rule, whose class documents it; `fields` are those of the rule."""
        return VariationalStep(cls(**fields), gamma, hyper_optimiser, frozen, tight)


class StepState(NamedTuple):
    """The states of the rule and of the hyperparameters' optimiser, and the guard."""

    rule: Any
    optimiser: Any
    guard: Guard


def _as_partial(schedule: Schedule) -> Partial:
    """A function has no numbers; a Partial has, for which no step is compiled again."""
    return schedule if isinstance(schedule, Partial) else Partial(schedule)


@final
class VariationalStep(AbstractStepper):
    """A step of size γ_t on the variational numbers, by a rule, and an optax step on all other numbers of the model,
    both from one pass over the batch.

    A step that would end at numbers that are not finite, or outside the family (a precision that is not positive
    definite), is rejected. So is one whose gradient is 10⁶ times as long as the last one: Adam's second moment would
    otherwise stall for thousands of steps. After a rejected step the model and all states are as before, and the next
    steps are half as long.

    Without a `hyper_optimiser` only the rule's numbers move. `frozen` selects numbers that stay, as
    `lambda m: m.posterior.Z` does. `tight` chooses the tight bound instead of the standard one. `prior`, such as
    `priors.FieldPriors`, has the log density of a model that the optax step climbs together with the bound.
    """

    rule: AbstractRule
    gamma: Schedule = eqx.field(converter=_as_partial)
    hyper_optimiser: GradientTransformation | None = eqx.field(static=True, default=None)
    frozen: tuple[Callable, ...] = eqx.field(static=True, default=())
    tight: bool = eqx.field(static=True, default=True)
    prior: Any = None

    @property
    def by_energy(self) -> bool:
        return self.rule.by_energy

    def init(self, model: Model, num_data: int) -> StepState:
        """The state before the first step. Raises TypeError where the rule does not move such a posterior."""
        _check(self.rule, model.posterior)
        optimiser = () if self.hyper_optimiser is None else self.hyper_optimiser.init(self._hyper(model).parts)
        guard = Guard.start(jnp.result_type(model.posterior.Z))
        return StepState(self.rule.init(model, num_data), optimiser, guard)

    def step(
        self, model: Model, state: StepState, batch: Dataset | BatchEnergy, num_data: Count, rows: Places | None = None
    ) -> tuple[Model, StepState, Info]:
        """One step on one batch, or on its sums where the rule needs no more (`by_energy`)."""
        guard, rule = state.guard, self.rule
        gamma = guard.scale * jnp.asarray(self.gamma(guard.steps), guard.scale.dtype)
        at = Context(self._hyper(model), batch, num_data, rows, gamma, guard, self.tight)
        proposal = rule.update(state.rule, at)
        moved, parts, optimiser, norm = self._climb(at.hyper, self._with_prior(at.hyper, proposal.gradient), state)
        reported = proposal.norm if rule.optimises or self.hyper_optimiser is None else norm
        norm = jnp.hypot(norm, proposal.norm) if rule.optimises else norm

        proposal = rule.carry(model, moved, proposal)
        moved = rule.placed(moved, proposal.values)
        # The optimiser's state is finite where the square of its gradient is, the model where its numbers are.
        finite = all_finite((proposal.bound, proposal.checked, parts, norm, reported))
        good = finite & guard.is_plausible(norm) & proposal.acceptable
        new, old = (moved, proposal.state, optimiser), (model, state.rule, state.optimiser)
        (model, kept, optimiser), guard = guard.accept_or_revert(good, new, old, norm)
        info = Info(proposal.bound, jnp.asarray(reported), jnp.asarray(gamma), ~good)
        return model, StepState(rule.write(kept, proposal, good), optimiser, guard), info

    def _hyper(self, model) -> Trainable:
        return trainable(model, self.rule.fields, *self.frozen)

    def _with_prior(self, hyper: Trainable, gradient: Parts) -> Parts:
        """The gradient of the bound and the log prior."""
        if self.prior is None:
            return gradient
        slope = jax.grad(lambda parts: self.prior.log_density(hyper.rebuild(parts)))(hyper.parts)
        return jax.tree.map(jnp.add, gradient, slope)

    def _climb(self, hyper: Trainable, gradient: Parts, state: StepState) -> tuple[Model, Parts, Any, Any]:
        """The model after the optax step, its hyperparameters, the optimiser's state and the gradient's norm."""
        zero = jnp.zeros_like(state.guard.norm)
        if self.hyper_optimiser is None:  # the gradient is not used, and the compiler drops it
            return hyper.model, (), state.optimiser, zero
        norm = jnp.sqrt(sum((jnp.sum(part**2) for part in gradient), zero))
        descent = jax.tree.map(jnp.negative, gradient)
        updates, optimiser = self.hyper_optimiser.update(descent, state.optimiser, hyper.parts)
        parts = jax.tree.map(lambda x, update: x + state.guard.scale * update, hyper.parts, updates)
        return hyper.rebuild(parts), parts, optimiser, norm


def _check(rule: AbstractRule, posterior: Any) -> None:
    # Types of our own objects are asked for here, because coordinates share field names (`mean`) and families share
    # fields (`q`, `a`): a rule would move another family by the wrong formula, and without an error.
    one, several = posterior.one, isinstance(posterior, IndependentLatents)
    fits = all(isinstance(getattr(one, name, None), kind) for name, kind in rule.moves.items())
    if rule.family is not None:
        fits = fits and isinstance(one, rule.family) and (several or one is posterior)
    if fits and not (rule.one_kernel and several and posterior.separate):
        return
    family = f"the posterior {rule.family.__name__}, or IndependentLatents of it" if rule.family else "a posterior"
    kernel = " with one kernel for all" if rule.one_kernel else ""
    coordinates = [f"{name} in {kind.__name__} coordinates" for name, kind in rule.moves.items() if kind is not object]
    fields = f", with {' and '.join(coordinates)}" if coordinates else ""
    raise TypeError(f"{rule.name} needs {family}{kernel}{fields}: use Optax for others")
