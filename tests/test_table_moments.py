"""Tables: dates in any order, times of day and durations, in text and in every type that holds them."""

import datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from table_helpers import column, encode, learn, nan, write

from pseudopoint.tables import TableEncoder, TableError, looks_like_classes, read_chunks, read_table

DAY = 20088.0  # 2024-12-31


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (["31.12.2024", "1.2.2024"], [DAY, 19754.0]),
        (["31/12/2024", "01/02/2024"], [DAY, 19754.0]),
        (["31-12-2024", "01-02-2024"], [DAY, 19754.0]),
        (["12/31/2024", "2/1/2024"], [DAY, 19754.0]),
        (["12/31/24", "2/1/24"], [DAY, 19754.0]),
        (["31.12.24", "01.01.70"], [DAY, 0.0]),
        (["31.12.2024 12:00", "31.12.2024 18:00:00"], [DAY + 0.5, DAY + 0.75]),
        (["12/31/2024 6:00 PM", "12/31/2024, 12:00 am"], [DAY + 0.75, DAY]),
        (["2024/12/31", "2024/1/1"], [DAY, 19723.0]),
        (["31 Dec 2024", "1-January-2024"], [DAY, 19723.0]),
        (["Dec 31, 2024", "January 1 2024"], [DAY, 19723.0]),
        (["31.12.2024", "2024-01-01"], [DAY, 19723.0]),
    ],
)
def test_dates_in_any_order_are_days(cells, values):
    encoder, notes = learn(t=cells)
    assert encoder.columns[0].kind == "date" and column(encoder, cells) == values and notes == []


@pytest.mark.parametrize(
    ("cells", "first", "order"),
    [
        (["1/2/2024", "3/4/2024"], "2024-01-02", "month"),
        (["1.2.2024", "3.4.2024"], "2024-02-01", "day"),
        (["1-2-2024", "3-4-2024"], "2024-02-01", "day"),
    ],
)
def test_dates_with_two_readings_get_the_usual_one_and_a_note(cells, first, order):
    encoder, notes = learn(t=cells)
    assert notes == [
        f"column 't': every date could have the day or the month first; {cells[0]!r} is read as {first}, "
        f"the {order} first"
    ]
    assert column(encoder, cells)[0] == (pd.Timestamp(first) - pd.Timestamp(0)).days


def test_another_column_decides_the_order_of_day_and_month():
    encoder, notes = learn(t=["1/2/2024", "3/4/2024"], u=["31/12/2024", "1/2/2024"])
    assert encode(encoder, t=["1/2/2024"], u=["1/2/2024"])[0] == [[19754.0, 19754.0]] and "the day first" in notes[0]


def test_dates_that_read_alike_in_both_orders_get_no_note():
    assert learn(t=["1.1.2024", "2.2.2024"])[1] == []


@pytest.mark.parametrize(
    "cells", [["1.2.10", "1.4.11"], ["31.2.2024", "30.2.2024"], ["10.0.0.1", "10.0.0.2"], ["5/7", "6/8"]]
)
def test_what_only_resembles_dates_is_no_date(cells):
    assert learn(t=cells)[0].columns[0].kind == "category"


def test_the_order_of_training_reads_chunks_and_later_files_alike(tmp_path):
    path = write(tmp_path / "t.csv", b"t,y\n01/02/2024,1\n31/12/2024,2\n02/03/2024,3\n")
    encoder, _ = TableEncoder.learn(read_table(path), "y")
    chunks = [encoder.inputs(chunk)[0] for chunk in read_chunks(path, 1, encoder)]
    assert np.vstack(chunks)[:, 0].tolist() == [19754.0, DAY, 19784.0]
    assert "no date in 1 row ('12/31/2024')" in encode(encoder, t=["12/31/2024"])[1][0]
    # Days and months of ISO dates have no order to go by.
    iso, _ = learn(t=["2024-01-01", "2024-01-02"])
    assert "no date in 1 row ('01/02/2024')" in encode(iso, t=["01/02/2024"])[1][0]


# ---- Times of day and durations --------------------------------------------------------------------------------------

TIMES = [datetime.time(13, 45), None, datetime.time(0, 30)]
LONG = [datetime.timedelta(days=1, hours=12), None, datetime.timedelta(minutes=36)]


@pytest.mark.parametrize(
    "values",
    [
        ["13:45", None, "0:30"],
        ["13:45:00", "NA", "00:30:00.0"],
        ["1:45 pm", None, "12:30 a.m."],
        TIMES,
        pd.Series(TIMES, dtype="time64[us][pyarrow]"),
    ],
    ids=["text", "seconds", "halves", "objects", "arrow"],
)
def test_times_of_day_are_hours(values):
    encoder, notes = learn(t=values)
    assert encode(encoder, t=values)[0] == [[13.75, 0.0], [7.125, 1.0], [0.5, 0.0]]
    assert notes[1:] == ["column 't': a time of day or a clock is read in hours"]


@pytest.mark.parametrize(
    "values",
    [
        LONG,
        pd.Series(LONG),
        pd.Series(LONG, dtype="timedelta64[s]"),
        pd.Series(LONG, dtype="duration[us][pyarrow]"),
        ["1 days 12:00:00", None, "0 days 00:36:00"],
        ["1 day, 12:00:00", "?", "0:36:00"],
        ["P1DT12H", None, "PT36M"],
    ],
    ids=["objects", "pandas", "seconds", "arrow", "text", "python", "iso"],
)
def test_durations_are_days_like_dates(values):
    if isinstance(values, list) and values[1] == "?":  # one clock in three is no clock and no duration by itself
        values = [*values, *["2 days"] * 4]
    encoder, notes = learn(t=values)
    assert encoder.columns[0].kind == "duration"
    assert [row[0] for row in encode(encoder, t=values)[0][::2][:2]] == [1.5, 0.025]
    assert notes[1:] == ["column 't': a duration is read in days"]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_times_and_durations_of_a_file_are_the_same_in_every_chunk(tmp_path, suffix):
    path = tmp_path / f"t.{suffix}"
    frame = pd.DataFrame({"time": TIMES, "long": LONG, "when": pd.to_datetime(["2024-12-31", None, "1970-01-01"])})
    frame["y"] = [1.0, 2.0, 3.0]
    frame.to_parquet(path) if suffix == "parquet" else frame.to_csv(path, index=False)
    encoder, _ = TableEncoder.learn(read_table(path), "y")
    assert [column.kind for column in encoder.columns] == ["time", "duration", "date"]
    X = np.vstack([encoder.encode(chunk)[0] for chunk in read_chunks(path, 1, encoder)])
    assert X[[0, 2]].tolist() == [[13.75, 0, 1.5, 0, DAY, 0], [0.5, 0, 0.025, 0, 0, 0]]


def test_a_target_of_durations_is_in_days_and_one_of_times_is_an_error():
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "y": pd.to_timedelta(["1 days", None, "12:00:00"])})
    encoder, notes = TableEncoder.learn(frame, "y")
    np.testing.assert_array_equal(encoder.target(frame), [1.0, nan, 0.5])
    assert notes == ["column 'y': a duration is read in days"]
    assert looks_like_classes(frame, "y") == (False, "the target 'y' holds durations")
    clock = pd.DataFrame({"a": [1.0, 2.0], "y": ["13:45", "14:00"]})
    assert looks_like_classes(clock, "y") == (False, "the target 'y' holds times of day")
    with pytest.raises(TableError, match="'y' is not numeric: row 1 holds '13:45'"):
        TableEncoder.learn(clock, "y")


def test_periods_are_the_days_on_which_they_begin():
    encoder, _ = learn(t=pd.Series(pd.PeriodIndex(["1970-02", "1970-01"], freq="M")))
    assert encoder.columns[0].kind == "date" and column(encoder, ["1970-02-01", "1970-01-01"]) == [31.0, 0.0]


def test_arrow_times_of_every_unit(tmp_path):
    arrays = {
        "t32": pa.array([3600], pa.time32("s")),
        "t64": pa.array([3600 * 10**9], pa.time64("ns")),
        "d32": pa.array([5], pa.date32()),
        "stamp": pa.array([86400 * 10**6], pa.timestamp("us", "UTC")),
        "long": pa.array([86400], pa.duration("s")),
        "y": pa.array([1.0]),
    }
    pq.write_table(pa.table(arrays), tmp_path / "t.parquet")
    frame = read_table(tmp_path / "t.parquet")
    encoder, _ = TableEncoder.learn(frame, "y")
    assert encoder.encode(frame)[0].tolist() == [[1.0, 1.0, 5.0, 1.0, 1.0]]


AT = pd.date_range("2024-01-01", periods=12, freq="7h")
IN_BERLIN = AT.tz_localize("Europe/Berlin")
WITHOUT_ZONE = {
    "type": AT,
    "text": AT.strftime("%Y-%m-%d %H:%M"),
    "days": AT.strftime("%Y-%m-%d"),
    "arrow": pd.Series(AT).astype("timestamp[us][pyarrow]"),
}
WITH_ZONE = {
    "type": IN_BERLIN,
    "Z": AT.strftime("%Y-%m-%dT%H:%M:%SZ"),
    "offset": IN_BERLIN.strftime("%Y-%m-%d %H:%M%z"),
    "objects": pd.Series([*IN_BERLIN], dtype=object),
    "arrow": pd.Series(IN_BERLIN).astype("timestamp[us, tz=Europe/Berlin][pyarrow]"),
}


@pytest.mark.parametrize("zone", [False, True])
def test_a_later_table_with_other_zones_than_training_is_told(zone):
    same, other = (WITH_ZONE, WITHOUT_ZONE) if zone else (WITHOUT_ZONE, WITH_ZONE)
    for kind, at in same.items():
        encoder, notes = TableEncoder.learn(pd.DataFrame({"x": at, "y": np.arange(12.0)}), "y")
        assert notes == []
        assert TableEncoder.from_dict(encoder.to_dict()) == encoder
        for later in same.values():
            assert encoder.inputs(pd.DataFrame({"x": later}))[1] == [], kind
        for later in other.values():
            (note,) = encoder.inputs(pd.DataFrame({"x": later}))[1]
            assert (
                "times without a zone in 12 rows" if zone else "times with a zone, of which training had none"
            ) in note


def test_a_column_of_which_some_times_have_a_zone_is_told():
    cells = ["2024-01-01T00:00Z", "2024-01-02T00:00+02:00", "2024-01-03T00:00"]
    _, notes = TableEncoder.learn(pd.DataFrame({"x": cells, "y": [1.0, 2.0, 3.0]}), "y")
    assert notes == ["column 'x': 1 row without a time zone, taken for UTC"]
