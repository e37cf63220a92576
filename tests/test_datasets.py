"""Data sets: the catalogue is that of the shared folder, and nothing but the table meant is ever loaded."""

import csv
import gzip
import hashlib
import os
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pseudopoint.datasets import CATALOGUE, DataError, data_folder, download, fetching, find, load, source, split

SHARED = Path(os.environ.get("PSEUDOPOINT_DATA") or Path(__file__).parents[2] / "shared" / "data")
there = pytest.mark.skipif(not (SHARED / "manifest.csv").is_file(), reason=f"NOT TESTED: no data sets in {SHARED}")
FETCHED = ["yacht", "energy", "kin40k", "abalone", "ionosphere"]  # one of each form, and energy has two targets


@pytest.fixture
def alone(tmp_path, monkeypatch) -> Path:
    """An empty data folder; neither the environment nor the user's cache has another."""
    monkeypatch.delenv("PSEUDOPOINT_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def frame_of(name: str) -> pd.DataFrame:
    X, y, about = load(name, SHARED)
    return pd.DataFrame(np.column_stack([X, y]), columns=list(about.columns))


def put(folder: Path, name: str, frame: pd.DataFrame) -> None:
    (folder / f"{name}.csv.gz").write_bytes(gzip.compress(frame.to_csv(index=False).encode()))


# --- The catalogue ---


@there
def test_the_catalogue_says_what_the_shared_folder_says():
    sums = {line.split()[1]: line.split()[0] for line in (SHARED / "SHA256SUMS").read_text().splitlines()}
    manifest = {line["name"]: line for line in csv.DictReader((SHARED / "manifest.csv").read_text().splitlines())}
    readme = {cells[0]: cells for cells in _readme_tables()}
    assert set(manifest) == set(CATALOGUE) and len(CATALOGUE) == 26
    for name, line in manifest.items():
        known = CATALOGUE[name]
        assert known.sha256 == sums[f"{name}.csv.gz"]
        counts = (known.rows, len(known.columns) - 1, known.classes)
        assert counts == (int(line["n"]), int(line["d"]), int(line["classes"] or 0))
        assert (known.task, known.target) == (line["task"], "y")
        assert (known.origin, known.licence) == (readme[name][6], readme[name][7])


def _readme_tables():
    lines = (SHARED / "README.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return [cells for cells in rows if len(cells) == 9]


@there
@pytest.mark.parametrize("name", [name for name, known in CATALOGUE.items() if known.rows * len(known.columns) < 4e5])
def test_a_table_is_its_file_and_has_the_contents_of_the_catalogue(name):
    X, y, about = load(name, SHARED)
    assert hashlib.sha256((SHARED / f"{name}.csv.gz").read_bytes()).hexdigest() == about.sha256
    values = np.column_stack([X, y]).astype("<f8")
    assert hashlib.sha256(values.tobytes()).hexdigest() == about.contents
    assert len(y) == about.rows and np.isfinite(values).all()
    if about.classes:
        assert sorted(set(y)) == list(range(about.classes))


def test_naval_comes_with_the_package(alone):
    X, y, about = load("naval", alone)
    assert X.shape == (11934, 16) and y[0] == 0.95 and about.licence == "CC BY 4.0 (UCI)"
    assert hashlib.sha256(find("naval", alone).read_bytes()).hexdigest() == about.sha256


# --- Where files are looked for ---


def test_the_folder_is_the_one_given_then_that_of_the_environment_then_the_cache(alone, monkeypatch):
    assert data_folder(alone) == alone
    assert data_folder() == alone.parent / "cache" / "pseudopoint"
    monkeypatch.setenv("PSEUDOPOINT_DATA", str(alone.parent / "elsewhere"))
    assert data_folder() == alone.parent / "elsewhere" and data_folder(alone) == alone
    monkeypatch.delenv("PSEUDOPOINT_DATA")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_folder() == Path.home() / ".cache" / "pseudopoint"


def test_a_missing_table_is_one_sentence_that_says_what_to_do(alone):
    with pytest.raises(DataError, match=f"energy.csv.gz is not in {str(alone)!r}.*--data.*PSEUDOPOINT_DATA.*yaringal"):
        load("energy", alone)
    with pytest.raises(DataError, match="no data set 'enrgy'; the names are energy, boston"):
        source("enrgy")


# --- What is refused ---


@there
def test_a_table_that_was_compressed_anew_is_the_same_table(alone):
    put(alone, "yacht", frame_of("yacht"))
    assert (alone / "yacht.csv.gz").read_bytes() != (SHARED / "yacht.csv.gz").read_bytes()
    np.testing.assert_array_equal(load("yacht", alone).X, load("yacht", SHARED).X)


def one_number(values):
    values[7, 3] += 1e-9
    return values


def one_row_less(values):
    return values[:-1]


def two_rows_exchanged(values):
    return values[[1, 0, *range(2, len(values))]]


@there
@pytest.mark.parametrize(
    ("damage", "words"),
    [(one_number, "other numbers"), (one_row_less, "307 rows, 308 belong"), (two_rows_exchanged, "other numbers")],
)
def test_another_checksum_is_refused(alone, damage, words):
    frame = frame_of("yacht")
    put(alone, "yacht", pd.DataFrame(damage(frame.to_numpy().copy()), columns=frame.columns))
    with pytest.raises(DataError, match=f"{re.escape(str(alone))}.* another SHA-256 than yacht .*{words}.*delete it"):
        load("yacht", alone)


@there
def test_another_number_of_columns_is_refused(alone):
    put(alone, "yacht", frame_of("yacht").iloc[:, 1:])
    with pytest.raises(DataError, match="has 6 columns, 'prismatic_coef' to 'y', where 7 belong, 'lc' to 'y'"):
        load("yacht", alone)
    put(alone, "yacht", frame_of("yacht").rename(columns={"y": "target"}))
    with pytest.raises(DataError, match="to 'target', where 7 belong"):
        load("yacht", alone)


@there
def test_a_file_that_is_no_table_is_refused(alone):
    (alone / "yacht.csv.gz").write_bytes(b"<html>not found</html>")
    with pytest.raises(DataError, match="cannot be read"):
        load("yacht", alone)
    (alone / "yacht.csv.gz").write_bytes((SHARED / "yacht.csv.gz").read_bytes()[:900])
    with pytest.raises(DataError, match="cannot be read"):
        load("yacht", alone)
    put(alone, "yacht", frame_of("yacht").astype(object).replace(-2.3, "five"))
    with pytest.raises(DataError, match="text where numbers belong"):
        load("yacht", alone)


# --- Splits ---


def test_the_split_is_that_of_the_baselines():
    train, test = split(768, 0)
    order = np.random.default_rng(0).permutation(768)
    np.testing.assert_array_equal(train, order[:691])
    np.testing.assert_array_equal(test, order[691:])
    assert len(split(100, 3, 0.5)[0]) == 50 and not np.array_equal(split(100, 3)[0], split(100, 4)[0])


# --- Downloads: nothing outside can be reached here, so a file stands in for each page, in its origin's form ---


def as_published(name: str) -> bytes:
    frame = frame_of(name)
    if name in ("yacht", "energy"):
        frame["second"] = 0.5  # energy's and naval's second target
        lines = frame if name == "energy" else frame.drop(columns="second")
        return "\n".join("  ".join(f"{value:.7e}" for value in row) for row in lines.to_numpy()).encode()
    if name == "abalone":
        sex = frame[["sex_M", "sex_F", "sex_I"]].to_numpy() @ [0, 1, 2]
        letters = pd.Series(list("MFI")).loc[sex.astype(int)].reset_index(drop=True)
        return pd.concat([letters, frame.iloc[:, 3:]], axis=1).to_csv(index=False, header=False).encode()
    if name == "ionosphere":
        frame["y"] = np.where(frame["y"] == 1, "g", "b")
        return frame.to_csv(index=False, header=False).encode()
    return gzip.compress(frame.to_csv(index=False, header=False).encode())


@pytest.fixture
def publish(tmp_path, monkeypatch):
    """Puts content where `download` looks for a data set."""

    def at(name: str, content: bytes | None) -> Path:
        page = tmp_path / f"{name}.page"
        if content is not None:
            page.write_bytes(content)
        reader = fetching.ADDRESSES[name][1]
        monkeypatch.setattr(fetching, "ADDRESSES", dict(fetching.ADDRESSES) | {name: (page.as_uri(), reader)})
        return page

    return at


@there
@pytest.mark.parametrize("name", FETCHED)
def test_what_is_downloaded_becomes_our_table(alone, publish, name):
    publish(name, as_published(name))
    path = download(name, alone / "new")
    assert path == alone / "new" / f"{name}.csv.gz"
    ours, shared = load(name, alone / "new"), load(name, SHARED)
    np.testing.assert_array_equal(ours.X, shared.X)
    np.testing.assert_array_equal(ours.y, shared.y)


@there
def test_what_is_another_table_is_not_kept(alone, publish):
    right = as_published("yacht")
    for content, words in [
        (right.replace(b"e-01", b"e-02", 1), "another SHA-256"),
        (b"\n".join(line.rpartition(b"  ")[0] for line in right.split(b"\n")), "6 columns, .* where 7 belong"),
        (b"<html>\n<p>There is nothing at this address.</p>", "is no table"),
        (b"", "is no table"),
    ]:
        publish("yacht", content)
        with pytest.raises(DataError, match=f"what came from file.*{words}.*nothing was kept"):
            download("yacht", alone)
    assert not list(alone.iterdir())


def test_without_a_network_it_says_what_to_do(alone, publish):
    publish("energy", None)
    with pytest.raises(
        DataError, match=r"energy could not be downloaded from file:.*offline, copy energy.csv.gz .* into"
    ):
        download("energy", alone)


def test_where_no_source_is_known_it_says_so(alone):
    unknown = sorted(set(CATALOGUE) - set(fetching.ADDRESSES) - {"ringnorm"})
    for name in unknown:
        with pytest.raises(DataError, match=f"{name} cannot be downloaded.*get {name}.csv.gz"):
            download(name, alone)
    doc = str(fetching.__doc__)
    assert all(name in doc for name in unknown)


def test_ringnorm_is_made_by_its_formula(alone):
    download("ringnorm", alone)
    X, y, _ = load("ringnorm", alone)
    assert X.shape == (7400, 20)
    log_odds = 10 * np.log(4) + (X**2).sum(1) / 8 - ((X - 2 / np.sqrt(20)) ** 2).sum(1) / 2  # of class 1, Bayes' rule
    assert 0.0115 < np.mean((log_odds > 0) != y) < 0.0117  # 1.16 %, as the shared folder's README says


def test_addresses_are_of_a_fixed_commit():
    assert all(re.search(r"/[0-9a-f]{40}/", address) for address, _ in fetching.ADDRESSES.values())
