"""The page on tables: its examples are read as it says, and its words and numbers are those of the code."""

import re
from pathlib import Path

import pandas as pd
import pytest
from table_helpers import column, learn

from pseudopoint.tables.formats import MAX_CATEGORIES, NEARLY_ALL
from pseudopoint.tables.missing import USUAL
from pseudopoint.tables.reading import FIRST_ROWS
from pseudopoint.tables.remarks import FAR, FAR_NINES, SEVERAL

PAGE = (Path(__file__).parents[1] / "docs" / "tables.md").read_text()
EXAMPLES = re.findall(r"^\| (`.*`) \| (.*) \|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("cells", "values"), EXAMPLES)
def test_an_example_is_read_as_the_page_says(cells, values):
    texts = re.findall("`(.*?)`", cells)
    encoder, _ = learn(a=texts, b=range(len(texts)))
    assert encoder.columns[0].kind != "category"
    X, _ = encoder.encode(pd.DataFrame({"a": texts, "b": 0}))
    assert X[:, 0].tolist() == [float(value) for value in values.split(", ")]


def test_the_numbers_of_the_page_are_those_of_the_code():
    assert len(EXAMPLES) == 17
    for number in (f"{NEARLY_ALL:.0%}".replace("%", " %"), f"the {MAX_CATEGORIES} most", f"first {FIRST_ROWS} rows"):
        assert number in PAGE.replace("\n", " ")
    assert (FAR, FAR_NINES, SEVERAL) == (5, 0.5, 2)
    assert {"na", "n/a", "nan", "null", "none", "nat", "?", "-", ".", "*"} <= USUAL


def test_a_code_of_digits_is_a_number_until_pandas_says_category():
    assert column(learn(a=["01234", "00501"])[0], ["01234"]) == [1234.0]
    assert learn(a=pd.Series(["01234", "00501"], dtype="category"))[0].feature_names == ["a=00501", "a=01234"]
