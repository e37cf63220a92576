"""Save and load a fitted model: one safe, self-describing file.

The file is in the safetensors format, so that any reader of it opens the arrays, which are named by their place in the
tree. The header's metadata are format ("pseudopoint"), format_version ("1"), kind, library_version, created (UTC), spec
and sha256. The spec says in JSON how the arrays fit together. None, bool, int, str (NumPy's too), finite floats and
lists stand for themselves; all else is an object:

    {"dict": {key: node}}   {"tuple": [node]}   {"float": "nan" | "inf" | "-inf"}   {"array": name}   {"scalar": name}
    {"class": ".module.Class", "fields": {field: node}}

A class of this package is named relative to it, with a leading dot and without submodules, so that a module may become
a folder; any other class has its full name. A field that the file lacks gets the default of today's class, if there is
one; a field that today's class lacks means that the file is newer. The digest covers the whole file, with zeros for the
digest itself: a digest of the contents alone would miss changes in padding, names and shapes. It finds accidents; it is
no signature.

Rejected: pickle, which runs code from the file. Here a file only names classes, and only classes of `MODULES` or those
that the caller passes are built.
"""

import dataclasses
import hashlib
import importlib
import importlib.util
import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from typing import Any, BinaryIO

import equinox as eqx
import jax
import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from . import __version__
from .files import FilePath, whole_file

FORMAT_VERSION = "1"
PACKAGE = "pseudopoint"
# Modules whose equinox classes a file may name. Explicit, because importing a module runs it.
MODULES = frozenset(
    "linalg params priors means warps data kernels likelihoods gaussians posteriors bounds optimise".split()
)

# Classes that earlier versions saved under another name: today's name, and the new names of renamed fields.
RENAMED: dict[str, tuple[str, dict[str, str]]] = {
    ".posteriors.InducingPoints": (".posteriors.Collapsed", {}),
    ".posteriors.MeanPoints": (".posteriors.CollapsedDecoupled", {}),
    ".posteriors.Latents": (".posteriors.IndependentLatents", {"each": "base"}),
    ".posteriors.Shrunk": (".posteriors.ShrunkResidual", {"each": "base"}),
    ".posteriors.Shifted": (".posteriors.DiagonalPrecision", {}),
    ".posteriors.LogShift": (".posteriors.LogPrecision", {}),
    ".posteriors.SoftplusShift": (".posteriors.SoftplusPrecision", {}),
    ".posteriors.DirectShift": (".posteriors.DirectPrecision", {}),
}

# A field that earlier versions stored as None, and that has its default now: a Model without a posterior is exact.
NONE_IS_DEFAULT = {(".posteriors.Model", "posterior")}

DTYPES = frozenset("bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split())
MAX_HEADER = 100_000_000  # bytes: the limit of the safetensors format
NO_DIGEST = "0" * 64

FOREIGN = "is no model file of pseudopoint, or its header is damaged; give a file that pseudopoint saved"
AGAIN = "save the model again or fetch a fresh copy of the file"
DAMAGED = f"is damaged ({{}}); {AGAIN}"
TOO_MUCH = "cannot hold this tree ({}); make it less deep and store long lists as arrays"

# Errors of json, NumPy, safetensors and object.__new__ on content or trees that they cannot handle.
UNFIT = (ArithmeticError, AttributeError, LookupError, RecursionError, SafetensorError, TypeError, ValueError)


class ModelFileError(ValueError):
    """A model file cannot be written or read. The message is one sentence: which file, what is wrong, what to do."""


def save(path: FilePath, tree: Any, *, kind: str, classes: Sequence[type] = ()) -> None:
    """Write `tree` to one file, whole or not at all (`files.whole_file`).

    `tree` nests dict (string keys), list, tuple, None, bool, int, float, str, NumPy arrays and scalars, JAX arrays and
    equinox modules of this package. Everything is stored exactly, arrays bit for bit in their dtype (little-endian);
    but a NumPy string is stored as the str that it equals.

    `kind` says what the tree is, for example "regressor"; `load` asks for it. `classes` are equinox modules from
    elsewhere in the tree, for example a kernel of your own. ModelFileError if the tree cannot be stored, or the file
    cannot be written.
    """
    with writing(path):
        tensors: dict[str, np.ndarray] = {}
        spec = json.dumps(_encode(tree, kind, tensors, classes))
        created = datetime.now(UTC).isoformat(timespec="seconds")
        fixed = {"format": PACKAGE, "format_version": FORMAT_VERSION, "sha256": NO_DIGEST}
        varying = {"kind": kind, "library_version": __version__, "created": created, "spec": spec}
        blob = safetensors.numpy.save(tensors, fixed | varying)
        # The digest is that of the file with zeros in its place; the first match is in the header.
        digest = hashlib.sha256(blob).hexdigest()
        with whole_file(path) as file:
            file.write(blob.replace(_digest_field(NO_DIGEST), _digest_field(digest), 1))


def load(path: FilePath, *, kind: str, classes: Sequence[type] = ()) -> Any:
    """Read the tree that `save` wrote; nothing in the file is executed.

    All arrays come back as NumPy arrays of the stored dtype, so that float64 survives whatever JAX's 64-bit setting is.
    Modules are filled field by field, without their `__init__`, converters or checks. `classes` are the equinox modules
    from elsewhere that the file may build.

    ModelFileError if the file is missing, damaged, foreign, of another `kind` or from a newer version, or if it needs a
    class that is neither of this package nor in `classes`.
    """
    with reading(path), _open(path) as file:
        end, metadata = _read_metadata(file)
        file.seek(0)
        data = file.read()
        if _digest(data, end, metadata["sha256"]) != metadata["sha256"]:
            raise ModelFileError(DAMAGED.format("its checksum does not match"))
        if metadata["kind"] != kind:
            raise ModelFileError(f"holds {metadata['kind']!r}, not {kind!r}; load it with what saved it")
        return _decode(json.loads(metadata["spec"]), safetensors.numpy.load(data), classes)


def describe(path: FilePath) -> dict[str, Any]:
    """The metadata of a model file, as in the module's docstring, with `spec` parsed; its arrays are not read.

    ModelFileError as in `load`, except that the checksum is not verified.
    """
    with reading(path), _open(path) as file:
        _, metadata = _read_metadata(file)
        return metadata | {"spec": json.loads(metadata["spec"])}


def reading(path: FilePath) -> AbstractContextManager[None]:
    """A scope that builds something from a loaded tree. Every error in it becomes a ModelFileError that names the file.

    The message of a ModelFileError raised inside starts at the verb and has no full stop.
    """
    return _naming(path, "read", DAMAGED)


def writing(path: FilePath) -> AbstractContextManager[None]:
    """As `reading`, for a scope that makes a tree and writes it."""
    return _naming(path, "written", TOO_MUCH)


@contextmanager
def _naming(path: FilePath, verb: str, otherwise: str) -> Iterator[None]:
    subject = f"The model file {os.fspath(path)!r}"
    try:
        yield
    except ModelFileError as error:
        raise ModelFileError(f"{subject} {error}.") from error.__cause__
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise ModelFileError(f"{subject} cannot be {verb} ({why}); check the path, permissions and space.") from error
    except UNFIT as error:
        raise ModelFileError(f"{subject} {otherwise.format(type(error).__name__)}.") from error


def _encode(value: Any, where: str, tensors: dict[str, np.ndarray], classes: Sequence[type]) -> Any:
    """The JSON node of a value; its arrays join `tensors`. Types must match exactly: a subclass would not come back."""
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is np.str_:
        return str(value)
    if kind is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if kind is list:
        return [_encode(item, f"{where}[{i}]", tensors, classes) for i, item in enumerate(value)]
    if kind is tuple:
        return {"tuple": _encode(list(value), where, tensors, classes)}
    if kind is dict and all(type(key) is str for key in value):
        return {"dict": {key: _encode(item, f"{where}.{key}", tensors, classes) for key, item in value.items()}}
    if kind is np.ndarray or isinstance(value, jax.Array | np.generic):
        return {"scalar" if isinstance(value, np.generic) else "array": _add_tensor(value, where, tensors)}
    if isinstance(value, eqx.Module):
        if _find(_name(kind), classes) is not kind:
            raise ModelFileError(f"cannot hold {where}, whose class is {_name(kind)!r}; pass that class in `classes`")
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {"class": _name(kind), "fields": _encode(fields, where, tensors, classes)["dict"]}
    raise ModelFileError(f"cannot hold {where}, a {kind.__qualname__}; store plain values, arrays or equinox modules")


def _add_tensor(value: Any, where: str, tensors: dict[str, np.ndarray]) -> str:
    """Add an array in little-endian C order, and return its name: its place in the tree."""
    try:
        array = np.asarray(value)
    except TypeError as error:  # a typed random key, or a tracer inside a transformation
        raise ModelFileError(f"cannot hold {where}, a {value.dtype} without values; store its data") from error
    if array.dtype.name not in DTYPES:
        raise ModelFileError(f"cannot hold {where}, an array of {array.dtype}; convert it, for example with tolist()")
    name = where.encode("utf-8", "backslashreplace").decode()
    while name in tensors:  # {"a.b": x} and {"a": {"b": y}} share a place
        name += "'"
    tensors[name] = np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
    return name


def _decode(node: Any, tensors: dict[str, np.ndarray], classes: Sequence[type]) -> Any:
    """The value of a JSON node: the inverse of `_encode`."""
    match node:
        case None | bool() | int() | float() | str():
            return node
        case list():
            return [_decode(item, tensors, classes) for item in node]
        case {"tuple": list(items)}:
            return tuple(_decode(items, tensors, classes))
        case {"dict": dict(items)}:
            return {key: _decode(item, tensors, classes) for key, item in items.items()}
        case {"float": str(text)}:
            return float(text)
        case {"array": str(name)}:
            return tensors[name]
        case {"scalar": str(name)}:
            return tensors[name][()]
        case {"class": str(name), "fields": dict(items)}:
            return _build(name, {key: _decode(item, tensors, classes) for key, item in items.items()}, classes)
    raise ModelFileError(DAMAGED.format("its description has an unknown part"))


def _build(name: str, fields: dict[str, Any], classes: Sequence[type]) -> Any:
    """An instance with these fields, and defaults for missing ones. No `__init__`: a converter could change a dtype."""
    name, renamed = RENAMED.get(name, (name, {}))
    fields = {renamed.get(key, key): value for key, value in fields.items()}
    fields = {key: value for key, value in fields.items() if value is not None or (name, key) not in NONE_IS_DEFAULT}
    cls = _find(name, classes)
    if cls is None:
        newer = "upgrade pseudopoint or, if it is your own" if name.startswith(".") else "if it is your own"
        raise ModelFileError(
            f"needs {name!r}, no class of this pseudopoint; {newer} and you trust it, pass it in `classes`"
        )
    known = {field.name: field for field in dataclasses.fields(cls)}
    if newer := fields.keys() - known.keys():
        here = f"has another version of {name!r}, with {', '.join(sorted(newer))} that this pseudopoint does not know"
        raise ModelFileError(
            f"{here}; upgrade pseudopoint, or load it with the version that saved it (`describe` tells)"
        )
    added = {key: _default(field) for key, field in known.items() if key not in fields}
    if lacking := sorted(key for key, value in added.items() if value is dataclasses.MISSING):
        here = f"has another version of {name!r}, which differs in {', '.join(lacking)}"
        raise ModelFileError(f"{here}; load it with the library version that saved it (`describe` tells)")
    instance = object.__new__(cls)
    for key in known:
        object.__setattr__(instance, key, fields[key] if key in fields else added[key])
    return instance


def _default(field: dataclasses.Field) -> Any:
    """The default of a field, with arrays as NumPy arrays; MISSING if it has none."""
    value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    if value is dataclasses.MISSING:
        return value
    value = field.metadata.get("converter", lambda value: value)(value)
    return jax.tree.map(lambda leaf: np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf, value)


def _name(cls: type) -> str:
    match cls.__module__.split("."):
        case [package, module, *_] if package == PACKAGE:
            return f".{module}.{cls.__qualname__}"
    return f"{cls.__module__}.{cls.__qualname__}"


def _find(name: str, classes: Sequence[type]) -> type | None:
    """The class of this name that a file may build, among `classes` or in this package; None if there is none."""
    own = {_name(cls): cls for cls in classes}
    if name in own:
        return own[name]
    match name.split(".", 2):
        case ["", module, attribute] if module in MODULES and importlib.util.find_spec(f"{PACKAGE}.{module}"):
            found = getattr(importlib.import_module(f"{PACKAGE}.{module}"), attribute, None)
            # The names differ if the module only imports the class.
            if isinstance(found, type) and issubclass(found, eqx.Module) and _name(found) == name:
                return found
    return None


def _digest_field(digest: str) -> bytes:
    return f'"sha256":"{digest}"'.encode()  # unique in a header: inside JSON strings a backslash precedes each quote


def _digest(data: bytes, end: int, stored: str) -> str:
    """Digest of a file whose header ends at `end`, with zeros for the stored digest."""
    digest = hashlib.sha256(data[:end].replace(_digest_field(stored), _digest_field(NO_DIGEST)))
    digest.update(memoryview(data)[end:])
    return digest.hexdigest()


def _open(path: FilePath) -> BinaryIO:
    if not os.path.exists(path):
        raise ModelFileError("does not exist; check the path")
    if not os.path.isfile(path):  # a named pipe would wait for a writer
        raise ModelFileError("is a directory or a device; give the path of a regular file")
    return open(path, "rb")


def _read_metadata(file: BinaryIO) -> tuple[int, dict[str, Any]]:
    """Where the header ends, and its metadata. ModelFileError if the file is incomplete or of another format."""
    size = os.fstat(file.fileno()).st_size
    if size == 0:
        raise ModelFileError(f"is empty; {AGAIN}")
    length = int.from_bytes(file.read(8), "little")
    if length > min(size - 8, MAX_HEADER):  # the number comes from the file: check it before allocating memory
        raise ModelFileError(FOREIGN)
    try:
        header = json.loads(file.read(length))
        metadata = header.pop("__metadata__")
        version = metadata["format_version"]
        if metadata["format"] != PACKAGE:
            raise ValueError("another format")
    except UNFIT as error:
        raise ModelFileError(FOREIGN) from error
    if version != FORMAT_VERSION:
        raise ModelFileError(f"has format {version!r}, which this pseudopoint does not read; upgrade pseudopoint")
    if size != 8 + length + max((entry["data_offsets"][1] for entry in header.values()), default=0):
        raise ModelFileError(DAMAGED.format("bytes are missing or were added"))
    return 8 + length, metadata
