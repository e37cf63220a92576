"""How rows are written, and how tables and figures read them."""

import itertools
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import rankdata


def product(**values: Iterable[Any]) -> list[dict[str, Any]]:
    """Every combination, the last key's values changing fastest."""
    return [dict(zip(values, of, strict=True)) for of in itertools.product(*values.values())]


def marks(steps: int, count: int) -> list[int]:
    """After how many steps a course is looked at: 0, 1, 2, 3, … `steps`, spread evenly in the logarithm."""
    return [0, *map(int, np.unique(np.round(np.geomspace(1, steps, count))))]


def number(x: Any, digits: int = 6) -> float:
    """With so many digits."""
    return float(f"{float(x):.{digits}g}")


def finite(x: Any, digits: int = 6) -> float | None:
    """With so many digits; None for what is not finite."""
    return number(x, digits) if np.isfinite(float(x)) else None


def numbers(values: Iterable[float | None], missing: float = np.nan) -> np.ndarray:
    """With a number for None."""
    return np.array([missing if value is None else value for value in values], float)


def places(steps: Sequence[int], limits: Iterable[float]) -> list[int]:
    """Where the last of the ascending `steps` is that does not exceed each limit."""
    return [bisect_right(steps, limit) - 1 for limit in limits]


def shown(steps: Sequence[int], limits: Iterable[float]) -> dict[int, int]:
    """Steps to show in a table, near these and at the end, and their places."""
    return {steps[i]: i for i in sorted({*places(steps, limits), len(steps) - 1})}


def grouped(rows: list[dict], *keys: str) -> dict[tuple, list[dict]]:
    """Rows by what they say of these keys, in their order."""
    groups: dict[tuple, list[dict]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return groups


def average_ranks(rows: list[dict], method: str, figure: str, down: bool) -> dict[str, float]:
    """Average ranks of methods over the tables that have all, the best being 1; the lowest figure if `down`."""
    methods = list(dict.fromkeys(row[method] for row in rows))
    tables = [{row[method]: row[figure] for row in of} for of in grouped(rows, "table").values()]
    whole = [[of[name] for name in methods] for of in tables if len(of) == len(methods)]
    if not whole:
        return {}
    ranks = rankdata(np.array(whole) * (1 if down else -1), axis=1).mean(axis=0)
    return dict(zip(methods, ranks.tolist(), strict=True))


def panels(
    rows: list[dict], key: str, width: float = 4, height: float = 4, **shared: Any
) -> tuple[Figure, list[tuple[Any, Any, list[dict]]]]:
    """A picture with a panel for each value of a key: (axes, value, its rows)."""
    groups = grouped(rows, key)
    picture = Figure(figsize=(1 + width * len(groups), height), layout="constrained")
    every = picture.subplots(1, len(groups), squeeze=False, **shared)[0]
    return picture, [(axes, name, of) for axes, ((name,), of) in zip(every, groups.items(), strict=True)]
