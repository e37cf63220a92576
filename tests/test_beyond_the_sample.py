"""How columns are written, where only rows beyond the sample of a large table tell: as of the whole table in memory."""

import numpy as np
import pandas as pd
import pytest

from pseudopoint.tables import TableEncoder, learn_table, learning, open_source, source

pytestmark = pytest.mark.edge

N, LATE = 2_000, 1_990
rng = np.random.default_rng(3)


def table(cells, late):
    """With other cells in its last rows."""
    return pd.DataFrame({"c": [*cells[:LATE], *late * ((N - LATE) // len(late))], "y": rng.normal(size=N)})


AMBIGUOUS = [f"0{1 + i % 9}/0{1 + i % 7}/2024" for i in range(N)]
THOUSANDS = [f"{1 + i % 9}.{100 + i % 800}" for i in range(N)]
CASES = {  # and how often the table is read
    "the day first": (table(AMBIGUOUS, ["27/02/2024"]), 2),
    "the month first": (table([cell.replace("/", ".") for cell in AMBIGUOUS], ["02.27.2024"]), 2),
    "a decimal comma": (table(THOUSANDS, ["1.234,5", "7,25"]), 2),
    "a decimal point": (table([cell.replace(".", ",") for cell in THOUSANDS], ["1,234.5", "7.25"]), 1),
    "faults": (table(AMBIGUOUS, ["no date", "41/41/2024"]), 1),
    "nothing": (table(AMBIGUOUS, ["01/02/2024"]), 1),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_columns_are_read_as_in_memory(name, form, tmp_path, monkeypatch):
    """Dates of 7 May became ones of 5 July, and the cells that told so gaps; a decimal comma made 1.234 of 1234."""
    monkeypatch.setattr(source, "PART_ROWS", 200)
    (frame, readings), passes, count = CASES[name], [], learning._count
    monkeypatch.setattr(learning, "_count", lambda *given: passes.append(1) or count(*given))
    monkeypatch.setattr(learning, "sample_of", lambda *_: (frame.iloc[:60], False))  # none of the last rows
    path = tmp_path / f"t.{form}"
    frame.to_csv(path, index=False) if form == "csv" else frame.to_parquet(path, row_group_size=200)
    with open_source(path) as parts:
        learned = learn_table(parts, "y")
        X = np.concatenate([learned.encoder.encode(parts.part(i))[0] for i in range(len(parts.parts))])
    whole, _ = TableEncoder.learn(frame, "y")
    assert [column.format for column in learned.encoder.columns] == [column.format for column in whole.columns]
    there = np.arange(N) < (LATE if name == "faults" else N)  # gaps are filled with the median of the sample
    np.testing.assert_array_equal(X[there], whole.encode(frame)[0][there])
    np.testing.assert_allclose([learned.mean, learned.spread], [X.mean(0), X.std(0)], rtol=1e-9, atol=1e-9)
    open_order = any("could have the day or the month first" in note for note in learned.notes)
    assert len(passes) == readings and open_order == (name in ("faults", "nothing"))
