"""Damaged, foreign and hostile files: each is refused with the one error and one sentence, before anything is built."""

import hashlib
import json
import os
import pickle
import struct
import tracemalloc

import numpy as np
import pytest
import safetensors.numpy
from model_files import Line, forge, refused

from pseudopoint.persistence import ModelFileError, describe, load, save


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


@pytest.fixture
def small(path):
    save(path, {"line": Line(np.array([1.0, 2.0]), 3.0), "n": [1, "two"]}, kind="test", classes=[Line])
    return path


def opens_only_with_the_right_error(path):
    """`load` refuses; `describe`, which reads less, refuses or answers."""
    refused(path, classes=[Line])
    try:
        describe(path)
    except ModelFileError:
        pass


def test_a_file_cut_short_anywhere_is_refused(small):
    whole = small.read_bytes()
    for size in range(len(whole)):
        small.write_bytes(whole[:size])
        refused(small)
        with pytest.raises(ModelFileError):
            describe(small)


@pytest.mark.parametrize("flip", [0x01, 0x20, 0x80, 0xFF])
def test_a_changed_byte_anywhere_is_refused(small, flip):
    whole = small.read_bytes()
    for at in range(len(whole)):
        small.write_bytes(whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :])
        opens_only_with_the_right_error(small)


def test_changed_padding_and_added_bytes_are_refused(small):
    whole = small.read_bytes()
    end = 8 + int.from_bytes(whole[:8], "little")
    spaced = whole[:end] + b"\t" * 8 + whole[end:]
    for changed in [whole + b"\0", whole[: end - 1] + b"\n" + whole[end:], struct.pack("<Q", end) + spaced[8:]]:
        small.write_bytes(changed)
        opens_only_with_the_right_error(small)


@pytest.mark.parametrize("length", [2**31, 2**40, 2**63, 2**64 - 1])
def test_a_hostile_header_length_allocates_nothing(path, length):
    path.write_bytes(struct.pack("<Q", length) + b'{"__metadata__":{}}')
    os.truncate(path, 3 * 2**30)  # sparse
    tracemalloc.start()
    opens_only_with_the_right_error(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


FOREIGN = {
    "table": b"a,b,c\n1,2,3\n4,5,6\n" * 20,
    "pickle": pickle.dumps({"model": [1.0, 2.0]}),
    "zeros": bytes(100),
    "noise": np.random.default_rng(0).bytes(1000),
    "nobody's tensors": safetensors.numpy.save({"w": np.ones(3)}),
    "somebody's tensors": safetensors.numpy.save({"w": np.ones(3)}, {"format": "pt"}),
    "JSON": struct.pack("<Q", 2) + b"[]",
    "no JSON": struct.pack("<Q", 3) + b"\xff\xfe{",
    "deep JSON": struct.pack("<Q", 200_000) + b"[" * 200_000,
    "long number": struct.pack("<Q", 10_000) + b"9" * 10_000,
    "wrong metadata": struct.pack("<Q", 19) + b'{"__metadata__":[]}',
}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_files_are_refused(path, name):
    path.write_bytes(FOREIGN[name])
    refused(path, "is no model file of pseudopoint, or its header is damaged; give a file that pseudopoint saved")
    with pytest.raises(ModelFileError):
        describe(path)


def test_missing_empty_and_irregular_files_are_refused(path):
    refused(path, "does not exist; check the path")
    refused(path.parent, "is a directory or a device; give the path of a regular file")
    path.write_bytes(b"")
    refused(path, "is empty; save the model again")
    os.mkfifo(path.with_name("pipe"))
    refused(path.with_name("pipe"), "is a directory or a device")


def test_another_kind_is_refused(small):
    with pytest.raises(ModelFileError, match="holds 'test', not 'regressor'; load it with"):
        load(small, kind="regressor", classes=[Line])


def test_a_newer_format_asks_for_an_upgrade(path):
    refused(forge(path, format_version="2"), "has format '2', .*; upgrade pseudopoint")
    with pytest.raises(ModelFileError, match="upgrade"):
        describe(path)


HOSTILE = {
    "no JSON": "{",
    "deep": '{"tuple": [' * 50_000,
    "unknown": '{"eval": "1"}',
    "wrong type": '{"dict": [1]}',
    "array of no name": '{"array": ["a"]}',
    "missing array": '{"array": "b"}',
    "no number": '{"float": "much"}',
    "no fields": '{"class": ".kernels.RBF"}',
    "long number": "9" * 10_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_content_made_to_do_harm_is_refused(path, name):
    refused(forge(path, HOSTILE[name], {"a": np.ones(1)}), "is damaged")


def test_arrays_made_to_do_harm_are_refused(path):
    blob = forge(path, '{"array": "a"}', {"a": np.ones((1, 0))}).read_bytes()
    for old, new in [(b"[1,0]", b"[%d,0]" % 2**62), (b'"F64"', b'"BF16"'), (b'"F64"', b'"XYZ"'), (b"[1,0]", b"[-1,0]")]:
        header = blob[8:].replace(old, new)
        header = header.replace(json.loads(header)["__metadata__"]["sha256"].encode(), b"0" * 64)
        changed = struct.pack("<Q", len(header)) + header
        path.write_bytes(changed.replace(b"0" * 64, hashlib.sha256(changed).hexdigest().encode(), 1))
        refused(path, "is damaged [(](KeyError|SafetensorError|ValueError|OverflowError)")
