"""What rows are asked for, wherever they are: sums of a function of (parameters, chunk), batches, and a sample."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .compilation import program

CHUNK = 8192  # rows: the features of so many take 20 MB at M = 300, and factors of M³ cost little beside them
Part = Callable[[Any, Any], Any]  # (parameters, chunk) ↦ a tree of arrays; a named function or a frozen dataclass


@runtime_checkable
class Rows(Protocol):
    """N rows in memory, on disk or elsewhere. A chunk is a `Dataset`; rows that fill one up have weight zero.

    `minibatches` gives the batches `step`, …, `step + count − 1` without replacement, a stack [C, B], and their row
    numbers [C, B]; both depend on (seed, step) alone. `for_batches` gives the rows and the batch size that suit a
    given batch size. `sample` gives at most `size` rows at random, in their order.
    """

    def __len__(self) -> int: ...

    @property
    def num_columns(self) -> int:
        """D."""
        ...

    @property
    def total_weight(self) -> float:
        """The sum of the weights."""
        ...

    def sum(self, function: Part, parameters: Any) -> Any:
        """Σ over chunks of function(parameters, chunk)."""
        ...

    def pull(self, function: Part, parameters: Any, cotangents: Any) -> Any:
        """Σ over chunks of ∂function(parameters, chunk)/∂parameters, transposed, times `cotangents`: the derivative of
        `sum` in the floating arrays of the parameters, None in place of all else. Chunks are computed again."""
        ...

    def for_batches(self, batch_size: int) -> tuple["Rows", int]:
        """Rows and batch size for minibatches of about `batch_size` rows."""
        ...

    def minibatches(self, batch_size: int, seed: int, step: int, count: int) -> tuple[Any, Any]:
        """A stack of batches, and the numbers of their rows."""
        ...

    def sample(self, size: int, seed: int, everywhere: bool = False) -> Any:
        """At most `size` rows, a Dataset; with `everywhere` of all places, though that may take a pass."""
        ...


@runtime_checkable
class BatchSums(Protocol):
    """Rows elsewhere whose large batches stay where they are: what is known of a batch are sums over its rows."""

    def batch_sum(self, function: Part, parameters: Any, batch_size: int, seed: int, step: int) -> Any:
        """Σ over the chunks of one batch of function(parameters, chunk). The batch depends on (seed, step) alone and
        has about `batch_size` rows; its sum, times N/batch_size, is unbiased for that of all rows."""
        ...


def _added(function, parameters, chunk, total):
    return jax.tree.map(jnp.add, total, function(parameters, chunk))


def _pulled(function, parameters, chunk, cotangents, total):
    numbers, rest = eqx.partition(parameters, eqx.is_inexact_array)
    _, pull = jax.vjp(lambda numbers: function(eqx.combine(numbers, rest), chunk), numbers)
    return jax.tree.map(jnp.add, total, pull(cotangents)[0])


def sum_chunks(function: Part, parameters: Any, chunks: Iterable[Any]) -> Any:
    """Σ over `chunks`, all of one shape, of function(parameters, chunk), in their order. One compiled program."""
    run, total = program(_added, None, (0,)), None
    for chunk in chunks:
        if total is None:
            shapes = jax.eval_shape(function, parameters, chunk)
            total = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
        total = run(function, parameters, chunk, total)
    return total


def pull_chunks(function: Part, parameters: Any, cotangents: Any, chunks: Iterable[Any]) -> Any:
    """The derivative of `sum_chunks`, as `Rows.pull`."""
    run = program(_pulled, None, (0,))
    total = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), eqx.filter(parameters, eqx.is_inexact_array))
    for chunk in chunks:
        total = run(function, parameters, chunk, cotangents, total)
    return total


def recut(pieces: Iterable[Any], size: int, whole: int) -> Iterator[Any]:
    """The rows of consecutive pieces (trees of arrays with equally many rows, perhaps none) in chunks of `size`.

    `whole` is the number of all rows: a table of fewer than `size` is one chunk of them. The last chunk is shorter.
    """
    size, kept, count = min(size, whole), [], 0
    for piece in pieces:
        rows = len(jax.tree.leaves(piece)[-1])
        start = 0
        while count + rows - start >= size:
            stop = start + size - count
            kept.append(jax.tree.map(lambda x, a=start, b=stop: x[a:b], piece))
            yield joined(kept)
            start, kept, count = stop, [], 0
        if start < rows:
            kept.append(jax.tree.map(lambda x, a=start: x[a:], piece))
            count += rows - start
    if count:
        yield joined(kept)


def joined(pieces: list[Any]) -> Any:
    """The rows of consecutive pieces."""
    return pieces[0] if len(pieces) == 1 else jax.tree.map(lambda *x: np.concatenate(x), *pieces)
