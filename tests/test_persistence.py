"""Model files: what goes in comes out bit for bit, and nothing but a whole, own, known file is ever opened.

`python tests/test_persistence.py` writes the stored file of the current format version. That is done once a version:
a stored file that has to change means that users' files no longer load.
"""

import json
import os
import stat
import struct
import sys
import threading
import tracemalloc
from abc import abstractmethod
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from model_files import Line, assert_same, forge, refused

from pseudopoint import persistence
from pseudopoint.kernels import RBF
from pseudopoint.likelihoods import Gaussian
from pseudopoint.persistence import ModelFileError, describe, load, save
from pseudopoint.posteriors import Exact

pytestmark = pytest.mark.edge

REFERENCE = Path(__file__).parent / "references" / "model_format_1.safetensors"


class Both(eqx.Module):
    parts: tuple[Line, ...]
    weights: dict[str, Any]


class AbstractLine(eqx.Module):
    @abstractmethod
    def __call__(self): ...


class Reference(eqx.Module):
    __module__ = "researcher.kernels"  # the stored file names it so, wherever these tests live

    lengthscale: Any
    active: Any


def reference_tree():
    return {
        "model": Reference(np.array([0.5, -0.0, np.nan, np.inf]), np.array([[True, False]])),
        "scalar": np.float32(0.1),
        "count": np.int64(-(2**62)),
        "empty": np.zeros((0, 3), np.int32),
        "plain": [None, True, 7, 0.1, -float("inf"), "größe", (1, ())],
    }


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


def round_trip(path, tree, classes=()):
    save(path, tree, kind="test", classes=classes)
    return load(path, kind="test", classes=classes)


# --- Round trips ---

DTYPES = [np.dtype(name) for name in sorted(persistence.DTYPES)]
arrays = npst.arrays(st.sampled_from(DTYPES), npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
scalars = st.builds(lambda array: array.reshape(-1)[0], npst.arrays(st.sampled_from(DTYPES), 1))
plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=()))


def nest(trees):
    keys = st.text(max_size=4) | st.sampled_from(["a", "a.b", "__metadata__", "dict", "array"])
    lines = st.builds(lambda slope, offset: _line(slope, offset), trees, arrays)
    return st.lists(trees, max_size=4) | st.lists(trees, max_size=4).map(tuple) | st.dictionaries(keys, trees) | lines


def _line(slope, offset):
    line = Line(slope, 0.0)
    object.__setattr__(line, "offset", offset)  # past the converter, which would change a dtype
    return line


@settings(deadline=None, max_examples=150)
@given(tree=st.recursive(plain | arrays | scalars, nest, max_leaves=12))
def test_any_tree_comes_back_exactly(tmp_path_factory, tree):
    path = tmp_path_factory.mktemp("tree") / "model.safetensors"
    assert_same(tree, round_trip(path, tree, classes=[Line]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_layout_of_an_array_comes_back_exactly(path, dtype):
    grid = np.arange(24).reshape(2, 3, 4).astype(dtype)
    views = [
        grid,
        grid.T,
        grid[:, ::-2],
        grid[0, 0, 0:0],
        grid[1:, 1, 1].reshape(()),
        np.broadcast_to(grid[0], (5, 3, 4)),
    ]
    for view, loaded in zip(views, round_trip(path, views), strict=True):
        assert_same(np.ascontiguousarray(view).reshape(view.shape), loaded)
        assert loaded.flags.writeable and loaded.flags.c_contiguous


def test_every_bit_of_a_float_survives(path):
    bits = np.array([0x7FF8000000000001, 0xFFF0000000000123, 0x7FF4DEADBEEF0000, 0x8000000000000000, 1], np.uint64)
    tree = [
        bits.view(np.float64),
        np.array([0x7FA00001, 0x80000000], np.uint32).view(np.float32),
        np.float64(-0.0),
        -0.0,
    ]
    assert_same(tree, round_trip(path, tree))


def test_big_endian_arrays_keep_their_values(path):
    loaded = round_trip(path, np.array([1.5, -2.0], ">f8"))
    assert_same(np.array([1.5, -2.0], "<f8"), loaded)


@pytest.mark.parametrize("x64", [True, False])
def test_jax_arrays_come_back_as_numpy_arrays_whatever_the_64_bit_setting(path, x64):
    with jax.enable_x64(True):
        tree = [jnp.linspace(0.0, 1.0, 7), jnp.float32(0.1), jnp.arange(3), jnp.zeros((0, 2), bool)]
        save(path, tree, kind="test")
    with jax.enable_x64(x64):
        loaded = load(path, kind="test")
    assert_same(tree, loaded)
    assert [array.dtype.name for array in loaded] == ["float64", "float32", "int64", "bool"]


def test_modules_are_filled_without_their_converters(path):
    parts = (_line(np.float64(2.0), np.arange(3, dtype=np.int8)), _line(None, np.array(1.0)))
    both = Both(parts, {"a": np.ones(2), "b": (1.0, np.nan)})
    loaded = round_trip(path, both, classes=[Both, Line])
    assert_same(both, loaded)
    assert loaded.parts[0].offset.dtype == np.int8 and loaded.parts[0].name == "line"
    assert jax.tree.structure(loaded) == jax.tree.structure(both)


def test_arrays_of_one_place_are_kept_apart(path):
    tree = {"a.b": np.array(1.0), "a": {"b": np.array(2.0)}}
    assert_same(tree, round_trip(path, tree))


def test_any_safetensors_reader_opens_the_file(path):
    save(path, {"model": {"Z": np.ones((2, 1))}}, kind="regressor")
    assert_same({"regressor.model.Z": np.ones((2, 1))}, safetensors.numpy.load_file(path))


def test_files_of_format_1_still_load():
    assert_same(reference_tree(), load(REFERENCE, kind="reference", classes=[Reference]))


# --- What the metadata says ---


def test_describe_tells_what_is_inside(path):
    save(path, {"Z": np.ones(2), "n": (3, float("nan"))}, kind="regressor")
    metadata = describe(path)
    assert (metadata["format"], metadata["format_version"], metadata["kind"]) == ("pseudopoint", "1", "regressor")
    assert metadata["created"].endswith("+00:00") and metadata["library_version"]
    assert metadata["spec"] == {"dict": {"Z": {"array": "regressor.Z"}, "n": {"tuple": [3, {"float": "nan"}]}}}


def test_describe_reads_no_arrays(path):
    save(path, np.zeros(4_000_000), kind="test")
    tracemalloc.start()
    describe(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


# --- Classes ---


@pytest.fixture
def define(monkeypatch):
    """Defines classes in a stand-in for a module of the package."""
    module = ModuleType("pseudopoint.stand_in")
    module.__spec__ = ModuleSpec("pseudopoint.stand_in", None)
    monkeypatch.setitem(sys.modules, "pseudopoint.stand_in", module)
    monkeypatch.setattr(persistence, "MODULES", persistence.MODULES | {"stand_in"})

    def define(name, base: type = eqx.Module, where="pseudopoint.stand_in", **fields):
        cls = type(base)(name, (base,), {"__module__": where, "__annotations__": fields})
        setattr(module, name, cls)
        return cls

    return define


@pytest.mark.parametrize("where", ["pseudopoint.stand_in", "pseudopoint.stand_in.stationary"])
def test_classes_of_the_package_load_by_name(define, path, where):
    tree = define("RBF", where=where, variance=Any)(np.array(2.0))
    assert_same(tree, round_trip(path, tree))
    assert describe(path)["spec"] == {"class": ".stand_in.RBF", "fields": {"variance": {"array": "test.variance"}}}


@pytest.mark.parametrize("module", sorted(persistence.MODULES))
def test_every_model_class_of_the_package_is_found(module):
    content = vars(pytest.importorskip(f"pseudopoint.{module}", exc_type=ModuleNotFoundError))
    for cls in content.values():
        if isinstance(cls, type) and issubclass(cls, eqx.Module):
            assert persistence._find(persistence._name(cls), ()) is cls


def test_other_classes_are_refused_by_name(define, path):
    define("NotAModule", base=object)
    define("Imported", where="pseudopoint.likelihoods")
    elsewhere = "os.system builtins.eval stand_in.RBF ..os.system .cli.main .__main__.X . .stand_in .stand_in.__spec__"
    for name in [
        "",
        *elsewhere.split(),
        ".stand_in.NotAModule",
        ".stand_in.Imported",
        ".stand_in.Gone",
        ".kernels.Gone",
    ]:
        forge(path, json.dumps({"class": name, "fields": {}}))
        refused(path, f"needs {name!r}.*pass it in `classes`")


def test_a_class_of_ones_own_has_to_be_passed(path):
    with pytest.raises(ModelFileError, match="hold test.a, whose class is '.*Line'; pass that class in `classes`"):
        save(path, {"a": Line(1.0, 2.0)}, kind="test")
    assert not path.exists()
    save(path, {"a": Line(1.0, 2.0)}, kind="test", classes=[Line])
    refused(path, "needs '.*Line'.*pass it in `classes`", classes=[Both])


def test_a_local_class_is_never_taken_for_one_of_the_package(define, path):
    define("RBF", variance=Any)
    local = define("RBF", where="stand_in", variance=Any)  # from a researcher's own stand_in.py
    save(path, local(1.0), kind="test", classes=[local])
    refused(path, "needs 'stand_in.RBF'")
    assert type(load(path, kind="test", classes=[local])) is local


def test_fields_that_differ_name_the_version_as_the_cause(define, path):
    name = f"{Line.__module__}.Line"
    older, newer = {"slope": 1.0}, {"slope": 1.0, "offset": 2.0, "name": "", "new": 0}
    forge(path, json.dumps({"class": name, "fields": older}))
    refused(
        path, "has another version of '.*Line', which differs in offset; load it with the .* version", classes=[Line]
    )
    forge(path, json.dumps({"class": name, "fields": newer}))
    refused(path, "has another version of '.*Line', with new that this .* does not know; upgrade", classes=[Line])


def test_abstract_classes_are_refused(define, path):
    define("Abstract", where="pseudopoint.stand_in", base=AbstractLine)
    refused(forge(path, '{"class": ".stand_in.Abstract", "fields": {}}'), "is damaged .TypeError")


# --- What cannot be saved ---


@pytest.mark.parametrize(
    "thing",
    [
        {1, 2},
        len,
        1j,
        b"bytes",
        {1: "a"},
        object(),
        np.array(["a"]),
        np.array([None]),
        np.bytes_(b"a"),
        np.complex128(1),
    ]
    + [np.datetime64("2020-01-01"), np.ma.masked_array([1.0]), struct.Struct("d"), np.zeros(2, [("a", "f8")])],
    ids=lambda thing: type(thing).__name__,
)
def test_what_cannot_be_stored_is_named_with_its_place(path, thing):
    with pytest.raises(ModelFileError, match=r"cannot hold test\.model\[1\], .*; .*\.$"):
        save(path, {"model": [1, thing]}, kind="test")
    assert list(path.parent.iterdir()) == []


def test_typed_random_keys_are_named(path):
    with pytest.raises(ModelFileError, match="cannot hold test.key, a key<.*store its data"):
        save(path, {"key": jax.random.key(0)}, kind="test")


def test_endless_trees_are_an_error(path):
    cycle: list = []
    cycle.append(cycle)
    with pytest.raises(ModelFileError, match="cannot hold this tree"):
        save(path, cycle, kind="test")


def test_a_model_without_a_posterior_is_exact_as_in_earlier_versions():
    fields = {"kernel": RBF(), "likelihood": Gaussian(0.1), "posterior": None}
    assert isinstance(persistence._build(".posteriors.Model", fields, ()).posterior, Exact)


# --- Writing ---


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(path, monkeypatch, step):
    save(path, 1, kind="test")
    with monkeypatch.context() as patch:
        patch.setattr(os, step, lambda *args: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(ModelFileError, match="cannot be written .No space left"):
            save(path, 2, kind="test")
    assert load(path, kind="test") == 1
    assert list(path.parent.iterdir()) == [path]


def test_places_that_cannot_be_written_are_named(path):
    for bad in [path.parent, path.parent / "missing" / "model", path / "under a file"]:
        path.write_bytes(b"")
        with pytest.raises(ModelFileError, match="cannot be written"):
            save(bad, 1, kind="test")
        assert list(path.parent.iterdir()) == [path]


def test_links_and_permissions_are_kept(path, tmp_path):
    link = tmp_path / "link"
    save(path, 1, kind="test")
    path.chmod(0o640)
    link.symlink_to(path)
    save(link, 2, kind="test")
    assert link.is_symlink() and load(path, kind="test") == 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_readers_never_see_half_a_file(path):
    trees = [np.full(50_000, value) for value in (1.0, 2.0)]
    save(path, trees[0], kind="test")
    done = threading.Event()

    def write():
        for i in range(60):
            save(path, trees[i % 2], kind="test")
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        loaded = load(path, kind="test")
        assert loaded.shape == (50_000,) and len(np.unique(loaded)) == 1
    writer.join()


if __name__ == "__main__":
    save(REFERENCE, reference_tree(), kind="reference", classes=[Reference])
