"""Rows shared among the JAX devices of a process."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from .data import Dataset

AXIS = "devices"
ROWS_OF_A_DEVICE = 1024  # with fewer, a device would wait for the others about as long as it computes


@dataclass(frozen=True)
class Devices:
    """`count` devices that each compute with a share of the rows."""

    count: int

    def sum(self, tree: Any) -> Any:
        """The sum over all devices, the same on each. Where it is differentiated, it has to be outside of the function
        that `over_devices` maps."""
        return tree if self.count == 1 else lax.psum(tree, AXIS)

    def mean(self, tree: Any) -> Any:
        """As `sum`, the mean."""
        return tree if self.count == 1 else lax.pmean(tree, AXIS)


def over_devices(function: Callable[[Dataset, Devices], Any], data: Dataset) -> Any:
    """function(share, devices) on every device of the process, each with its share of the rows; function(data,
    Devices(1)) with one device or fewer than 1,024 rows for each.

    The result has to be the same on all devices, as `devices.sum` makes it. Row i goes to device i mod n, so that rows
    of weight zero at the end burden no device alone; copies of the first row at weight zero make shares equally long.
    What the function closes over is on every device. The result may be differentiated.
    """
    devices = _devices()
    n = len(devices)
    if n == 1 or len(data) < n * ROWS_OF_A_DEVICE:
        return function(data, Devices(1))
    more = -len(data) % n

    def dealt(x):
        x = jnp.concatenate([jnp.asarray(x), jnp.broadcast_to(x[:1], (more, *x.shape[1:]))])
        return x.reshape(-1, n, *x.shape[1:])

    counts = jnp.arange(len(data) + more).reshape(-1, n) < len(data)
    rows = jax.tree.map(dealt, data)
    rows = replace(rows, weight=jnp.where(counts, rows.weight, 0))
    mapped = jax.shard_map(
        lambda rows: function(jax.tree.map(lambda x: x[:, 0], rows), Devices(n)),
        mesh=Mesh(np.array(devices), (AXIS,)),
        in_specs=PartitionSpec(None, AXIS),
        out_specs=PartitionSpec(),
        check_vma=False,  # a scan of any kernel may begin with zeros, which would have to be marked as varying
    )
    return jax.jit(mapped)(rows)  # jit takes what the function closes over as arguments, under any transformation


def _devices() -> list[Any]:
    """The devices of this process; one where the user has chosen it (`jax.default_device`)."""
    return jax.local_devices() if jax.config.jax_default_device is None else [jax.config.jax_default_device]  # pyright: ignore[reportAttributeAccessIssue]
