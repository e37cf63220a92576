"""Steps on minibatches at equal wall-clock time, as Salimbeni, Eleftheriadis and Hensman (2018) compare them.

Courses are looked at after some steps; seconds are steps times `milliseconds`, the medians of a step's time, measured
in turn.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from matplotlib.figure import Figure

from pseudopoint.bounds import elbo
from pseudopoint.data import Dataset, draw
from pseudopoint.gaussians import MeanChol, MeanPrecision
from pseudopoint.optimise.minibatch import AbstractStepper, Alternate, NaturalGradient, Optax, log_linear
from pseudopoint.optimise.named import in_coordinates, standard_elbo
from pseudopoint.posteriors import Model

from ._rows import finite, grouped, marks, numbers, panels
from .settings import in_turn

LEARNING = ("NGD+Adam", "one pass", "Adam")


class Rule(NamedTuple):
    """A stepper, and the coordinates in which it moves q."""

    stepper: AbstractStepper
    coordinates: type


@cache  # another stepper is another program
def joint_rules(ramp: tuple[float, float, int]) -> dict[str, Rule]:
    """Rules that learn hyperparameters too, by name, with learning rates in their states."""
    with_rate = lambda method: optax.inject_hyperparams(method)(1.0)
    gamma = log_linear(*ramp)
    first = Optax(with_rate(optax.adam), (lambda m: m.posterior.q,), False)
    return {
        "NGD+Adam": Rule(Alternate(first, NaturalGradient(gamma, tight=False)), MeanPrecision),
        "one pass": Rule(NaturalGradient(gamma, with_rate(optax.adam), tight=False), MeanPrecision),
        "Adam": Rule(Optax(with_rate(optax.adam), (), False), MeanChol),
        "GD": Rule(Optax(with_rate(optax.sgd), (), False), MeanChol),
    }


def at_rates(config: Any) -> dict[str, tuple[Rule, float]]:
    """`config.rules`, each at every learning rate of its Adam in `config.rates`, by a name such as "Adam 0.01"."""
    every = joint_rules(config.ramp)
    return {f"{name} {rate:g}": (every[name], rate) for name in config.rules for rate in config.rates}


def best_rate(rows: list[dict], rule: str) -> str | None:
    """Of the names that begin with `rule`, the one whose bound ends highest, in the median of `rows`; None of none."""
    of = {name: rows for (name,), rows in grouped(rows, "rule").items() if name.rpartition(" ")[0] == rule}
    return max(of, key=lambda name: np.median([bound_height(row)[-1] for row in of[name]]), default=None)


def unbracketed(rows: list[dict], *rules: str, chosen: Mapping[str, str] | None = None) -> list[str]:
    """Of these rules, the ones whose best rate is the smallest or largest of those that have rows (or their only
    one): a better one may lie beyond. `chosen` has further rules, each with its best rate by other means."""
    found, chosen = [], chosen or {}
    for rule in (*rules, *chosen):
        names = {row["rule"] for row in rows if row["rule"].rpartition(" ")[0] == rule}
        rates = sorted(float(name.rpartition(" ")[2]) for name in names)
        best = chosen.get(rule) or best_rate(rows, rule)
        if best is not None and float(best.rpartition(" ")[2]) in (rates[0], rates[-1]):
            found.append(f"{best} of {', '.join(f'{rate:g}' for rate in rates)}")
    return found


def rows_of(data: Dataset, batch: int, steps: int, seed: int) -> jax.Array:
    """The rows of every batch, [steps, batch]."""
    return jnp.asarray(draw(len(data), min(batch, len(data)), seed, 0, steps), jnp.int32)


@jax.jit
def all_rows(model: Model, data: Dataset) -> jax.Array:
    """The standard bound of all rows."""
    return standard_elbo(model, data)


@eqx.filter_jit
def advance(stepper: AbstractStepper, at: Any, data: Dataset, rows: jax.Array, first: Any, last: Any):
    """(model, state, steps rejected) after the steps `first`, …, `last` − 1."""

    def step(t, at):
        batch = jax.tree.map(lambda x: x[rows[t]], data)
        model, state, info = stepper.step(at[0], at[1], batch, len(data), rows[t])
        return model, state, at[2] + info.rejected

    return lax.fori_loop(first, last, step, at)


def begin(rule: Rule, rate: float | None, model: Model, data: Dataset) -> tuple[Model, Any, jax.Array]:
    """The start, in the rule's coordinates, at this learning rate."""
    model = in_coordinates(model, rule.coordinates)
    learns = lambda path: "learning_rate" in jax.tree_util.keystr(path)
    state = jax.tree_util.tree_map_with_path(
        lambda path, x: jnp.full_like(x, rate or 0.0) if learns(path) else x, rule.stepper.init(model, len(data))
    )
    return model, state, jnp.zeros((), int)


def course(
    rule: Rule,
    rate: float | None,
    model: Model,
    data: Dataset,
    config: Any,
    seed: int,
    look: Callable = all_rows,
    steps: int | None = None,
    count: int = 30,
) -> tuple[dict[str, Any], list[Any], Model]:
    """After how many `steps` was looked, and how many were `rejected`; what `look` at (model, data) saw there (None
    where not finite); the last model. `config` has the batch, and the number of steps unless it is given."""
    total: int = steps or config.steps
    rows, at = rows_of(data, config.batch, total, seed), marks(total, count)
    here, seen = begin(rule, rate, model, data), []
    for first, last in zip([0, *at[:-1]], at, strict=True):
        here = advance(rule.stepper, here, data, rows, jnp.asarray(first), jnp.asarray(last))
        value = np.asarray(look(here[0], data))
        seen.append(np.vectorize(lambda x: finite(x, 8), otypes=[object])(value))
    return {"steps": at, "rejected": int(here[2])}, [value.tolist() for value in seen], here[0]


def step_times(rules: dict[str, Rule], model: Model, data: Dataset, config: Any, steps: int = 20) -> dict[str, float]:
    """Median milliseconds of a step, `steps` of each rule in turn."""
    rows, last = rows_of(data, config.batch, config.steps, 0), jnp.asarray(steps)
    here = {name: begin(rule, config.rates[-1], model, data) for name, rule in rules.items()}
    actions = {
        name: partial(advance, rule.stepper, here[name], data, rows, jnp.asarray(0), last)
        for name, rule in rules.items()
    }
    return {name: round(1e3 * seconds / steps, 3) for name, seconds in in_turn(actions, config.rounds).items()}


def times_at_rates(model: Model, data: Dataset, config: Any, steps: int = 20) -> dict[str, float]:
    """Milliseconds of a step, by rule and rate; they are the same at any rate."""
    rules = joint_rules(config.ramp)
    times = step_times({name: rules[name] for name in config.rules}, model, data, config, steps)
    return {f"{name} {rate:g}": times[name] for name in config.rules for rate in config.rates}


def in_one_session(rows: list[dict]) -> list[dict]:
    """The rows with the times of a step of their table's first row: a rule takes as long at any rate, and times of
    another session are not comparable."""
    rule = lambda name: name.rpartition(" ")[0]
    first = {table: some[0]["milliseconds"] for (table,), some in grouped(rows, "table").items()}
    of = {table: {rule(name): ms for name, ms in times.items()} for table, times in first.items()}
    return [row | {"milliseconds": {row["rule"]: of[row["table"]][rule(row["rule"])]}} for row in rows]


@jax.jit
def both(model: Model, data: Dataset, test: Dataset) -> jax.Array:
    """The standard bound of all rows, and the mean log density of the test rows."""
    bound, (mean, variance) = elbo(model, data, len(data)).standard, model.predictor()(test.X)
    return jnp.stack([bound, jnp.mean(model.likelihood.log_density(mean, variance, test.y))])


def ahead(mine: dict, other: dict, height: Callable[[dict], np.ndarray], after: int = 0) -> np.ndarray:
    """Whether `mine` is as high as `other` at the same time, at each of its marks after so many steps, as long as
    `other` lasts; between the marks of `other` its height goes with the logarithm of time."""
    return lead(mine, other, height, after) >= 0


def lead(mine: dict, other: dict, height: Callable[[dict], np.ndarray], after: int = 0) -> np.ndarray:
    """How far `mine` is above `other` there."""
    seconds = [np.array(row["steps"][1:]) * row["milliseconds"][row["rule"]] for row in (mine, other)]
    here = (np.array(mine["steps"][1:]) > after) & (seconds[0] <= seconds[1][-1])
    there = np.interp(np.log(seconds[0][here]), np.log(seconds[1]), height(other)[1:])
    return height(mine)[1:][here] - there


def margins(pairs: list[tuple[dict, dict]], height: Callable[[dict], np.ndarray], after: int) -> dict[str, list[float]]:
    """Leads of (mine, other) on each split, in shares of the climb from the start to the highest figure: the mean over
    marks at the same time after so many steps ("on the way"), and at the last such mark ("in the end")."""
    out: dict[str, list[float]] = {"on the way": [], "in the end": []}
    for mine, other in pairs:
        climb = max(max(height(mine)), max(height(other))) - height(mine)[0]
        shares = np.clip(lead(mine, other, height, after) / climb, -1, 1)
        out["on the way"].append(float(np.mean(shares)))
        out["in the end"].append(float(shares[-1]))
    return out


def share_ahead(pairs: list[tuple[dict, dict]], height: Callable[[dict], np.ndarray], after: int) -> float:
    """Of the marks of all pairs (mine, other), as in `ahead`."""
    return float(np.mean(np.concatenate([ahead(*pair, height, after) for pair in pairs])))


def sooner(pairs: list[tuple[dict, dict]], height: Callable[[dict], np.ndarray]) -> float:
    """Seconds of mine to the level that both reach, over those of the other; the median of the pairs (mine, other).

    The level is 1 % of the climb below the lower of the two highest figures; the climb is from the start to the higher.
    """

    def seconds(row, level):
        return row["milliseconds"][row["rule"]] * row["steps"][max(1, int(np.argmax(height(row) >= level)))]

    ratios = []
    for mine, other in pairs:
        highest = [max(height(row)) for row in (mine, other)]
        level = min(highest) - 0.01 * (max(highest) - height(mine)[0])
        ratios.append(seconds(mine, level) / seconds(other, level))
    return float(np.median(ratios))


def contests(
    rows: list[dict], rule: str, others: tuple[str, ...]
) -> Iterator[tuple[str, str, list[tuple[dict, dict]]]]:
    """For each table and other rule: pairs (row of `rule`, row of the other) on the splits that have both."""
    for (table,), of in grouped(rows, "table").items():
        by = {(row["split"], row["rule"]): row for row in of}
        for other in others:
            pairs = [(by[s, rule], by[s, other]) for s, name in by if name == rule and (s, other) in by]
            if pairs:
                yield table, other, pairs


def bound_height(row: dict) -> np.ndarray:
    """The bound; far down where there is none."""
    return numbers(row["bound"], -1e15)


def draw_courses(axes: Any, rows: list[dict], name: str, colours: list[str], **style: Any) -> None:
    """One line a row over seconds, the first of each rule with its name."""
    for row in rows:
        seconds = np.array(row["steps"][1:]) * row["milliseconds"][row["rule"]] / 1e3
        first = row is next(r for r in rows if r["rule"] == row["rule"])
        own = {"color": f"C{colours.index(row['rule'])}", "label": row["rule"] if first else None}
        axes.plot(seconds, numbers(row[name])[1:], **own, **style)
    axes.set(xscale="log", xlabel="seconds (steps × time of a step)")


def draw_bounds(rows: list[dict], rules: list[str]) -> Figure:
    """The bound over seconds, a line a split; a panel a table."""
    picture, every = panels(rows, "table")
    for axes, name, of in every:
        draw_courses(axes, of, "bound", rules, alpha=0.7)
        low, high = min(row["bound"][0] for row in of), max(bound_height(row).max() for row in of)
        limits = low - 0.1 * (high - low), high + 0.05 * (high - low)
        axes.set(title=name, ylabel="bound of all rows, nats", ylim=limits)
        axes.legend(fontsize="small", loc="lower right")
    return picture
