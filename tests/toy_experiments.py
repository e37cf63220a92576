"""A toy experiment, `squares`, which logs what it computes."""

from pathlib import Path

TOY = '''
"""Squares of numbers & what they are. Then what every number means."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from pseudopoint.reproduce import judged

from .settings import log

SOURCE = "Nobody 1999, figure 1"
PUBLISHED = ("Squares grow <b>fast</b>.",)
CUT = {"numbers": "The fifth number."}
TABLES = ()
COUNTS = ("numbers",)


@dataclass(frozen=True)
class Config:
    numbers: int = 5
    power: tuple[int, ...] = (2,)


FULL = Config(numbers=4)
QUICK = Config(numbers=2, power=(3,))


def cases(config):
    return [{"seed": seed, "kind": "square"} for seed in range(config.numbers)]


def run(case, config, folder):
    log(case["seed"])
    if case["seed"] == 1 and "TOY_HANGS" in os.environ:
        time.sleep(600)
    return {"value": np.float64(case["seed"] ** config.power[0]), "curve": jnp.arange(2.0)}


def table(rows):
    return [["seed", "value & more"], *([str(row["seed"]), f"{row['value']:.1f}"] for row in rows)]


def figure(rows):
    figure = Figure(figsize=(2, 2))
    figure.subplots().plot([row["value"] for row in rows])
    return figure


def verdict(rows):
    said = f"{len(rows)} rows, the last value is {rows[-1]['value']}."
    return [judged({"": [9.0, 9.5]}, "units", said)]
'''
SETTINGS = """
from pathlib import Path


def log(seed):
    with (Path(__file__).parent / "computed").open("a") as file:
        file.write(f"{seed}\\n")
"""


def make_toy(folder: Path) -> Path:
    """A folder of experiments with that one; its helper must not be taken for another."""
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "settings.py").write_text(SETTINGS)
    (folder / "_helpers.py").write_text("raise SystemExit")
    (folder / "squares.py").write_text(TOY)
    return folder


def add(folder: Path, name: str, *changes: tuple[str, str]) -> None:
    """One more experiment: the toy with some of its text replaced."""
    text = TOY
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / f"{name}.py").write_text(text)
