"""What is at a path decides how it is written: nothing there is lost, and no part of a file is ever seen."""

import errno
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from pseudopoint import files
from pseudopoint.files import check_place, user_cache, whole_file
from pseudopoint.persistence import ModelFileError, load, save
from pseudopoint.tables import TableError, write_chunks

ROOT = hasattr(os, "geteuid") and os.geteuid() == 0
pytestmark = [pytest.mark.skipif(os.name == "nt", reason="POSIX files")]
NOBODY = 54_321


def write(path, content=b"new"):
    with whole_file(path) as file:
        file.write(content)


def as_nobody(code: str, folder: Path) -> subprocess.CompletedProcess:
    """Python code run by a user whom the system does not know, and who may not read the libraries: they come first."""
    become = f"import os; os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})"
    code = f"from pseudopoint.files import check_place, whole_file\n{become}\n{code}"
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)


@pytest.fixture
def inside():
    """A folder that any user can reach."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


# --- What is no regular file stays what it is ---


def read_pipe(path) -> tuple[threading.Thread, list[bytes]]:
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(path.read_bytes()), daemon=True)
    reader.start()
    return reader, found


@pytest.mark.parametrize("linked", [False, True])
def test_a_pipe_is_written_into_and_stays_a_pipe(tmp_path, linked):
    pipe, path = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    path.symlink_to(pipe)
    content = os.urandom(300_000)
    reader, found = read_pipe(pipe)
    write(path if linked else pipe, content)
    reader.join(10)
    assert found == [content] and stat.S_ISFIFO(pipe.stat().st_mode) and path.is_symlink()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["link", "pipe"]


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "parquet"])
def test_every_kind_of_table_goes_into_a_pipe(tmp_path, suffix):
    import pandas as pd

    pipe = tmp_path / f"pipe.{suffix}"
    os.mkfifo(pipe)
    reader, found = read_pipe(pipe)
    frame = pd.DataFrame({"a": [1.0, 2.0]})
    for path in (tmp_path / f"file.{suffix}", pipe):
        with write_chunks(path) as writer:
            writer.append(frame)
    reader.join(10)
    assert found == [(tmp_path / f"file.{suffix}").read_bytes()]


@pytest.mark.skipif(not ROOT, reason="only root makes devices")
def test_a_device_is_written_into_and_stays_a_device(tmp_path):
    null = tmp_path / "null"
    try:
        os.mknod(null, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("this system makes no devices")
    before = null.stat()
    save(null, {"a": 1}, kind="test")
    write(null)
    after = null.stat()
    assert stat.S_ISCHR(after.st_mode) and (before.st_ino, before.st_rdev) == (after.st_ino, after.st_rdev)
    assert list(tmp_path.iterdir()) == [null]


@pytest.mark.skipif(not ROOT, reason="only root makes devices")
def test_a_disk_is_refused(tmp_path):
    disk = tmp_path / "disk"
    try:
        os.mknod(disk, 0o666 | stat.S_IFBLK, os.makedev(7, 250))
    except PermissionError:
        pytest.skip("this system makes no devices")
    with pytest.raises(OSError, match="a disk or a socket"):
        write(disk)
    assert stat.S_ISBLK(disk.stat().st_mode) and list(tmp_path.iterdir()) == [disk]


def test_sockets_and_folders_are_refused_in_words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a socket's name is short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket.csv")
        os.mkdir("folder.csv")
        for name, reason in {
            "socket.csv": "it is a disk or a socket, not a file",
            "folder.csv": "it is a folder",
        }.items():
            with pytest.raises(ModelFileError, match=f"cannot be written .{reason}"):
                save(name, 1, kind="test")
            with pytest.raises(TableError, match=f"{name}: cannot be written .{reason}"), write_chunks(name):
                pass
            with pytest.raises(OSError, match=reason):
                check_place(name)
    assert sorted(os.listdir()) == ["folder.csv", "socket.csv"]


def test_what_raises_writes_nothing_into_a_pipe(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(KeyError), whole_file(pipe) as file:  # nobody reads: a write would wait for ever
        file.write(b"part")
        raise KeyError
    assert list(tmp_path.iterdir()) == [pipe]


@pytest.mark.parametrize("redirected", ["pipe", "file"])
def test_standard_output_by_name_gets_the_bytes_in_their_order(tmp_path, redirected):
    code = """
from pseudopoint.files import whole_file
print("before")
with whole_file("/dev/stdout") as file:
    file.write(b"inside\\n")
print("after")
"""
    with open(tmp_path / "out", "wb") as out:
        target = out if redirected == "file" else subprocess.PIPE
        done = subprocess.run([sys.executable, "-c", code], stdout=target, check=True)
    found = done.stdout if redirected == "pipe" else (tmp_path / "out").read_bytes()
    assert found == b"before\ninside\nafter\n"


# --- What is a regular file keeps all but its content ---


def test_hard_links_keep_pointing_to_one_file(tmp_path):
    path, other = tmp_path / "a", tmp_path / "b"
    for content in (b"first", b"a longer one", b"short", b""):
        path.write_bytes(b"old")
        other.unlink(missing_ok=True)
        os.link(path, other)
        write(path, content)
        assert other.read_bytes() == path.read_bytes() == content and path.samefile(other)
    with pytest.raises(KeyError), whole_file(path) as file:
        file.write(b"part")
        raise KeyError
    assert path.read_bytes() == b"" and len(list(tmp_path.iterdir())) == 2


def test_an_interrupt_never_leaves_a_part_in_a_file_of_two_links(tmp_path, monkeypatch):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    os.link(path, tmp_path / "b")
    copy, calls = files._copy, []

    def interrupted(source, file):
        calls.append(1)
        if len(calls) == 1:
            file.write(b"n")
            raise KeyboardInterrupt
        copy(source, file)

    monkeypatch.setattr(files, "_copy", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(path, b"new content")
    assert path.read_bytes() == b"new content"


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_permissions_and_attributes_are_kept(tmp_path, mode):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    path.chmod(mode)
    os.utime(path, (1e9, 1e9))
    attributes = {}
    try:
        os.setxattr(path, "user.note", b"kept")
        attributes = {"user.note": b"kept"}
    except (OSError, AttributeError):
        pass  # a file system, or a system, without them
    write(path)
    assert stat.S_IMODE(path.stat().st_mode) == mode and path.stat().st_mtime > 1.5e9
    assert all(os.getxattr(path, name) == value for name, value in attributes.items())


@pytest.mark.skipif(not ROOT, reason="only root gives files away")
def test_the_owner_is_kept(tmp_path, inside):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    os.chown(path, NOBODY, NOBODY)
    write(path)
    assert (path.stat().st_uid, path.stat().st_gid) == (NOBODY, NOBODY)
    # Who is not root cannot give a file away: it is written into, also where its folder may not be written.
    shared = inside / "shared"
    shared.write_bytes(b"old")
    shared.chmod(0o666)
    node = shared.stat().st_ino
    code = "with whole_file('shared') as file: file.write(b'new')"
    done = as_nobody(code, inside)
    assert done.returncode == 0, done.stderr
    there = shared.stat()
    assert (shared.read_bytes(), there.st_ino, there.st_uid) == (b"new", node, os.geteuid())
    assert list(inside.iterdir()) == [shared]


@pytest.mark.skipif(not ROOT, reason="root sees to it that another user has no permission")
def test_a_file_or_folder_without_permission_is_refused_in_words(inside):
    (inside / "kept").write_bytes(b"old")
    code = """
for name in ("kept", "new"):
    for use in (check_place, lambda name: whole_file(name).__enter__()):
        try:
            use(name)
        except PermissionError as error:
            print(error.strerror, error.filename)
"""
    done = as_nobody(code, inside)
    assert done.stdout.splitlines() == ["it may not be written kept"] * 2 + ["its folder may not be written new"] * 2
    assert (inside / "kept").read_bytes() == b"old"


def test_a_mounted_file_is_written_into(tmp_path, monkeypatch):
    path = tmp_path / "a"
    path.write_bytes(b"old, and longer")
    node = path.stat().st_ino

    def busy(*_):
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(os, "replace", busy)
    write(path)
    assert (path.read_bytes(), path.stat().st_ino) == (b"new", node)
    assert list(tmp_path.iterdir()) == [path]


# --- Names, and disks that are full ---


@pytest.mark.parametrize("name", ["a" * 255, "ü" * 127, "line\nfeed", "'\" $(x)", b"\xff\xfe.csv"], ids=range(5))
def test_any_name_that_the_system_takes_is_written(tmp_path, name):
    path = os.path.join(os.fsencode(tmp_path), os.fsencode(name))
    for content in (b"old", b"new"):
        write(os.fsdecode(path), content)
    with open(path, "rb") as file:
        assert file.read() == b"new"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("name", ["a" * 256, "x\0y", "file/below", "loop"])
def test_a_name_that_the_system_does_not_take_is_refused_in_words(tmp_path, name):
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(ModelFileError, match="cannot be written"):
        save(tmp_path / name, 1, kind="test")
    assert sorted(os.listdir(tmp_path)) == ["file", "loop"]


FULL = """
import resource, signal, sys
from pseudopoint.files import whole_file
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    with whole_file(sys.argv[1]) as file:
        file.write(bytes(50_000))
except OSError as error:
    print(error.strerror, error.filename)
"""


@pytest.mark.parametrize("links", [1, 2])
def test_a_full_disk_leaves_the_old_file_and_names_it(tmp_path, links):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    if links == 2:
        os.link(path, tmp_path / "b")
    done = subprocess.run([sys.executable, "-c", FULL, path], capture_output=True, text=True)
    assert done.stdout == f"File too large {path}\n", done.stderr
    assert path.read_bytes() == b"old" and len(list(tmp_path.iterdir())) == links


def test_a_disk_that_fills_while_a_file_is_written_into_leaves_it(tmp_path, monkeypatch):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    os.link(path, tmp_path / "b")

    def full(descriptor, start, size):
        os.ftruncate(descriptor, size // 2)  # a part of the space was there
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        write(path, bytes(1000))
    assert path.read_bytes() == b"old"


# --- The cache ---


def test_a_cache_is_where_the_user_has_a_home(tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for home, cache in {
        str(tmp_path): tmp_path / ".cache" / "pseudopoint",
        str(tmp_path / "missing"): None,
        "relative": None,
        "": None,
    }.items():
        monkeypatch.setenv("HOME", home)
        assert user_cache() == cache
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    assert user_cache() == tmp_path / "own" / "pseudopoint"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the specification: unheeded
    assert user_cache() is None
    assert list(tmp_path.iterdir()) == []


def test_one_whole_file_is_loaded_whatever_two_writers_do(tmp_path):
    path = tmp_path / "model"
    writers = [
        threading.Thread(target=lambda n=n: [save(path, [n] * 500, kind="test") for _ in range(20)]) for n in (1, 2)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert load(path, kind="test") in ([1] * 500, [2] * 500) and list(tmp_path.iterdir()) == [path]
