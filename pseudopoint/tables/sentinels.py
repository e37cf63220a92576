"""Values such as -999 or 9.97e36 that stand for missing ones: found, and told."""

import numpy as np
from jaxtyping import Float64

from pseudopoint.tables.messages import row_count

__all__ = ["sentinel_notes"]

FAR = 5  # times the range of the other values
FAR_NINES = 0.5  # enough for -99, 999, …, which people choose for missing values
SEVERAL = 2  # rows
MOST = 3  # different such values at either end
FEWEST_OTHERS = 5  # different values: fewer are rather codes


def sentinel_notes(name: str, values: Float64[np.ndarray, "N"]) -> list[str]:
    """A sentence for each value that occurs several times and lies far outside all others.

    Far is 5 times the range of the others; for numbers of nines alone, half of it.
    """
    u, counts = np.unique(values[~np.isnan(values)], return_counts=True)
    low, high = _far_below(u), _far_below(-u[::-1])
    others = u[low : len(u) - high]
    places = [*range(low), *range(len(u) - high, len(u))]
    return [
        f"column {name!r}: {u[place]:.12g} in {row_count(int(counts[place]))} lies far from all other values "
        f"({others[0]:.6g} to {others[-1]:.6g}); if it means missing, fit with --missing {u[place]:.12g} "
        f"(in Python missing=['{u[place]:.12g}'])"
        for place in places
        if counts[place] >= SEVERAL
    ]


def _far_below(u: Float64[np.ndarray, "U"]) -> int:
    """How many of the distinct values, in ascending order, lie far below the rest."""
    for count in range(min(MOST, len(u) - FEWEST_OTHERS), 0, -1):
        # Values far above are not part of the range, or -999 would hide behind 999.
        rest = u[count : max(len(u) - MOST, count + FEWEST_OTHERS)]
        with np.errstate(over="ignore"):
            gap, size = rest[0] - u[count - 1], rest[-1] - rest[0]
        nines = set(f"{abs(u[count - 1]):.12g}") == {"9"} and abs(u[count - 1]) > 9
        if gap > (FAR_NINES if nines else FAR) * size:
            return count
    return 0
