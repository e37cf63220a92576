"""NAVAL with three likelihoods, where ordinary gradients never get there (Salimbeni et al. 2018, figure 5).

The target has 51 values, k = 0, …, 50. "Gaussian" sees it standardised, "Beta" (scale learned) as (k + ½)/51, "ordinal"
(51 bins, 49 of them uniform in [−2, 2]) as k. Hyperparameters and Z are learned, on batches of 256. `test` is the mean
log density of the test rows in these units, `bound` the standard bound of all training rows in nats, both after the
steps in `steps`. NGD+Adam is a step of Adam and then a natural one on q; "one pass" (ours) makes both from one point;
Adam alone takes twice the steps, for its own are about half as long. Each does so at every learning rate of Adam that
is named after it. For Beta, which is not log-concave, natural steps are guarded.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from pseudopoint.data import Dataset, dataset
from pseudopoint.likelihoods import AbstractLikelihood, Beta, Gaussian, Ordinal
from pseudopoint.posteriors import Model
from pseudopoint.reproduce import Judgement, judged, untested

from ._minibatches import LEARNING, at_rates, best_rate, both, course, unbracketed
from ._rows import grouped, numbers, panels, places, product
from .settings import head, parts, start

SOURCE = "Salimbeni, Eleftheriadis and Hensman 2018, figure 5"
PUBLISHED = (
    "Gaussian likelihood: Adam cannot achieve the optimal value of the test log likelihood, even after many iterations "
    "and with different step sizes; NGD+Adam does (no number is printed).",
    "The same with the Beta likelihood.",
    "The same with the ordinal likelihood.",
)
CUT = {
    "splits": "Two. The paper's figure shows one; five with --paper.",
    "steps": "5000, as in the paper's figure, and twice as many of Adam alone; 20,000 with --paper, which say whether "
    "Adam arrives later.",
    "rates": "The paper prints none: five, from 0.0003 to 0.03.",
    "": "Natural steps for Beta are guarded, which is ours. Beta targets are (k + ½)/51, for at 0 and 1, to which the "
    "paper rescales, the density is 0 or infinite.",
}
TABLES = ("naval",)
STYLES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (1, 4)), (0, (6, 3)))
LIKELIHOODS: dict[str, Callable[[], AbstractLikelihood]] = {
    "Gaussian": lambda: Gaussian(1.0),
    "Beta": lambda: Beta(1.0),
    "ordinal": lambda: Ordinal(np.linspace(-2, 2, 50)),
}


@dataclass(frozen=True)
class Config:
    """The paper's setting, but more splits and steps than its figure shows; scales of the likelihoods start at 1."""

    splits: int = 5
    rows: int | None = None
    inducing: int = 100
    batch: int = 256
    steps: int = 20_000
    more: int = 2  # times as many for Adam alone
    ramp: tuple[float, float, int] = (1e-4, 0.1, 40)
    rates: tuple[float, ...] = (0.1, 0.03, 0.01, 0.003, 0.001, 3e-4)
    likelihoods: tuple[str, ...] = tuple(LIKELIHOODS)
    rules: tuple[str, ...] = LEARNING


FULL = Config(splits=2, steps=5000, rates=(0.03, 0.01, 0.003, 0.001, 3e-4))
QUICK = Config(1, 1000, 20, 64, 150, 1, rates=(0.01,), likelihoods=("ordinal",), rules=("NGD+Adam", "Adam"))
COUNTS = ("splits", "rates", "likelihoods", "rules")


def cases(config: Config) -> list[dict[str, Any]]:
    """Every rule with every likelihood."""
    return product(likelihood=config.likelihoods, split=range(config.splits), rule=at_rates(config))


def run(case: dict[str, Any], config: Config, folder: Path) -> dict[str, Any]:
    """Bound and test log density along the course."""
    train, test, model = problem(folder, case["likelihood"], case["split"], config.rows, config.inducing)
    steps = config.steps * (config.more if case["rule"].startswith("Adam") else 1)
    look, rule = partial(both, test=test), at_rates(config)[case["rule"]]
    figures, seen, _ = course(*rule, model, train, config, case["split"], look, steps)
    bound, density = map(list, zip(*seen, strict=True))
    return figures | {"bound": bound, "test": density}


@lru_cache(maxsize=1)  # cases that follow each other share it
def problem(folder: Path, name: str, split: int, rows: int | None, M: int) -> tuple[Dataset, Dataset, Model]:
    """Rows for training and for testing in the likelihood's units, and the start."""
    train, test, _ = parts(folder, "naval", split, scale_target=name == "Gaussian")
    if name != "Gaussian":
        steps = lambda y: jnp.round((y - 0.95) / 0.001)  # y = 0.95, 0.951, …, 1
        units = {"Beta": lambda y: (steps(y) + 0.5) / 51, "ordinal": steps}[name]
        train, test = (dataset(part.X, units(part.y)) for part in (train, test))
    train = head(train, rows)
    model = start(train, LIKELIHOODS[name](), M)
    # The paper's D = 16 counts two columns that do not vary.
    return train, test, eqx.tree_at(lambda m: m.kernel.lengthscale, model, jnp.asarray(4.0))


def table(rows: list[dict]) -> list[list[str]]:
    """Medians over splits after so many steps, a line a likelihood and rule."""
    limits = (100, 1000, 5000)
    lines = [["likelihood", "rule", *(f"test after {t}" for t in limits), "best test", "in the end", "bound there"]]
    lines[0] += ["rejected", "splits"]
    for (name, rule), of in grouped(rows, "likelihood", "rule").items():
        tests = np.array([numbers(row["test"]) for row in of])
        at = places(of[0]["steps"], limits)
        cells = [f"{np.median(values):.4f}" for values in (*tests[:, at].T, np.nanmax(tests, axis=1), tests[:, -1])]
        cells += [f"{np.median([numbers(row['bound'])[-1] for row in of]):.1f}"]
        lines.append([name, rule, *cells, str(sum(row["rejected"] for row in of)), str(len(of))])
    return lines


def figure(rows: list[dict]) -> Figure:
    """Test log density over steps, a panel a likelihood; a colour a rule, a line style a rate."""
    picture, every = panels(rows, "likelihood")
    names, rates = (list(dict.fromkeys(row["rule"].rpartition(" ")[i] for row in rows)) for i in (0, 2))
    for axes, name, of in every:
        for row in of:
            rule, _, rate = row["rule"].rpartition(" ")
            look = {"color": f"C{names.index(rule)}", "linestyle": STYLES[rates.index(rate) % len(STYLES)]}
            label = row["rule"] if row["split"] == of[0]["split"] else None
            axes.plot(row["steps"][1:], numbers(row["test"])[1:], label=label, **look)
        low, high = of[0]["test"][0], max(np.nanmax(numbers(row["test"])) for row in of)
        limits = low - 0.3 * (high - low), high + 0.05 * (high - low)
        axes.set(title=name, xscale="log", xlabel="steps", ylabel="mean test log density", ylim=limits)
    handles, labels = every[0][0].get_legend_handles_labels()
    picture.legend(handles, labels, loc="outside right center", fontsize="small")
    return picture


def verdict(rows: list[dict]) -> list[Judgement]:
    """Does NGD+Adam, at the rate where its bound ends highest, end above all that Adam reaches at any time and rate?
    The rate is chosen by the bound of the training rows, on each split."""
    return [of_likelihood([row for row in rows if row["likelihood"] == name]) for name in LIKELIHOODS]


def of_likelihood(rows: list[dict]) -> Judgement:
    """NGD+Adam's test log density in the end less the highest of Adam's, on each split."""
    margins, text, edges = [], [], {}
    for (split,), group in grouped(rows, "split").items():
        of = {row["rule"]: numbers(row["test"], -1e15) for row in group}
        adam = {rule: float(np.max(tests)) for rule, tests in of.items() if rule.startswith("Adam")}
        chosen = best_rate(group, "NGD+Adam")
        if adam and chosen is not None:
            best, end = max(adam, key=adam.__getitem__), float(of[chosen][-1])
            margins.append(end - adam[best])
            text.append(f"split {split}: {end:.4g} with {chosen} (at most {adam[best]:.4g} by {best})")
            edges |= dict.fromkeys(unbracketed(group, "NGD+Adam", chosen={"Adam": best}))
    if not margins:
        return untested("It takes NGD+Adam and Adam with this likelihood.")
    return judged({"": margins}, "nats of test log density a row", f"In the end, {'; '.join(text)}.", list(edges))
