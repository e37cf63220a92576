"""What the tests of model files share: a class of one's own, exact comparison, forged files, the one kind of error."""

import hashlib
import os
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from pseudopoint.persistence import ModelFileError, load


class Line(eqx.Module):
    slope: Any
    offset: Any = eqx.field(converter=jnp.asarray)
    name: str = eqx.field(static=True, default="line")


def assert_same(a, b):
    """Equal in type, structure, dtype and every bit; JAX arrays count as the NumPy arrays they come back as."""
    a = np.asarray(a) if isinstance(a, jax.Array) else a
    assert type(a) is type(b)
    if isinstance(a, eqx.Module):
        assert_same(vars(a), vars(b))
    elif isinstance(a, dict):
        assert list(a) == list(b)
        assert_same(list(a.values()), list(b.values()))
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    elif isinstance(a, np.ndarray | np.generic):
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    else:
        assert repr(a) == repr(b)


def forge(path, spec='{"dict": {}}', tensors=None, **metadata):
    """A file with a valid digest and any content: the format as its module's docstring tells it, written again."""
    known = {"format": "pseudopoint", "format_version": "1", "kind": "test", "library_version": "0", "created": ""}
    metadata = known | metadata | {"spec": spec, "sha256": "0" * 64}
    blob = safetensors.numpy.save(tensors or {}, metadata)
    path.write_bytes(blob.replace(b"0" * 64, hashlib.sha256(blob).hexdigest().encode(), 1))
    return path


def refused(path, match=None, classes=()):
    """The file is refused with one sentence that names it."""
    with pytest.raises(ModelFileError, match=match) as error:
        load(path, kind="test", classes=classes)
    message = str(error.value)
    assert message.startswith(f"The model file {os.fspath(path)!r} ") and message.endswith(".") and "; " in message
    assert "\n" not in message
