"""Verdicts can fail: every experiment that judges a finding is given rows that hold it, and rows that contradict it.

Rows are written down, as small as a verdict reads them; nothing is computed. `holds` are rows with every finding beyond
the spread of two runs; `against` has, for each finding by number, what to do to them so that this finding is wrong.
"""

import copy

import numpy as np
import pytest
from verdict_rows import EVERY, FOLDER, JUDGED

from pseudopoint.reproduce import differences, experiment, judged, names, overall, untested, within

NONE_PRINTED = {"kobe_causes", "diagonal_synthetic", "decoupled_tables"}  # no finding: ours
NONE_PRINTED |= {"izmailov_svi", "izmailov_large", "izmailov_newton", "izmailov_illustrations"}
ONE_RUN = {"ng_mnist", "decoupled_elbo", "decoupled_optimum", "decoupled_classification"}
ONE_RUN |= {"naval_diagonal", "izmailov_means"}  # without spread, nothing agrees


def test_every_experiment_is_here():
    assert set(names(FOLDER)) == set(JUDGED) | NONE_PRINTED


@pytest.mark.parametrize("name", JUDGED)
def test_rows_that_hold_a_finding_and_rows_that_contradict_it(name):
    rows, against = JUDGED[name]()
    module = experiment(name, FOLDER)
    found = module.verdict(copy.deepcopy(rows))
    without = [name in ONE_RUN for _ in found]
    assert [of.mark for of in found] == ["one run" if one else "agrees" for one in without], found
    assert len(found) == len(module.PUBLISHED)
    assert all(of.margin is not None and of.margin > 0 for of in found)
    assert set(against) == set(range(1, len(module.PUBLISHED) + 1))
    for number, change in against.items():
        of = module.verdict(change(copy.deepcopy(rows)))[number - 1]
        assert of.margin is not None and of.margin < 0
        assert of.mark == ("one run" if without[number - 1] else "disagrees"), (number, of)


@pytest.mark.parametrize("name", JUDGED)
def test_missing_rows_are_untested(name):
    rows, _ = JUDGED[name]()
    found = experiment(name, FOLDER).verdict(rows[:1])
    assert len(found) == len(experiment(name, FOLDER).PUBLISHED) and "agrees" not in {of.mark for of in found}


@pytest.mark.parametrize("name", ["ng_joint", "ng_student_t", "ng_naval", "ng_mnist"])
def test_a_best_rate_at_the_edge_of_the_grid_is_said_and_agrees_with_nothing(name):
    rows, _ = JUDGED[name]()
    rate = lambda row: row["rate"] if "rate" in row else float(row["rule"].rpartition(" ")[2])
    found = experiment(name, FOLDER).verdict([row for row in rows if rate(row) <= 0.01])
    assert {of.mark for of in found} == {"rate at the edge"} and all("0.01 of" in of.said for of in found)


@pytest.mark.parametrize("rule", ["NGD+Adam", "Adam"])
def test_a_best_rate_at_the_edge_on_one_split_is_said(rule):
    rows, _ = JUDGED["ng_naval"]()
    low = lambda row: row["split"] == 1 and row["rule"] == f"{rule} 0.001"
    better = lambda row: [x + 6 for x in row["bound"]]
    rows = [row | {"bound": better(row), "test": better(row)} if low(row) else row for row in rows]
    found = experiment("ng_naval", FOLDER).verdict(rows)
    assert {of.mark for of in found} == {"rate at the edge"} and all(f"{rule} 0.001 of" in of.said for of in found)


@pytest.mark.parametrize("name", ["decoupled_optimum", "decoupled_classification"])
def test_an_edge_of_every_rule_with_rates_counts(name):
    rows, _ = JUDGED[name]()
    few = [row for row in rows if row["rule"] != "hybrid, Adam" or row["rate"] == 0.03]
    first, second = experiment(name, FOLDER).verdict(few)
    assert first.mark == "rate at the edge" and "hybrid, Adam, 0.03, the best of 1" in first.said
    assert second.mark == "one run"


def test_rows_timed_in_different_sessions_are_not_compared():
    rows, _ = JUDGED["decoupled_elbo"]()
    rows[0] = rows[0] | {"milliseconds": rows[0]["milliseconds"] | {"ORTH": 1.1}}
    found = experiment("decoupled_elbo", FOLDER).verdict(rows)
    assert {of.mark for of in found} == {"untested"} and all("different sessions" in of.said for of in found)


def test_times_of_a_later_session_change_nothing():
    rows, _ = JUDGED["ng_student_t"]()
    module, slow = experiment("ng_student_t", FOLDER), {name: 9 * ms for name, ms in EVERY.items()}
    later = [row | {"milliseconds": slow} if row["rule"].endswith("0.001") else row for row in rows]
    assert module.verdict(later) == module.verdict(rows)


def test_figures_above_the_evidence_are_lost():
    module = experiment("diagonal_joint", FOLDER)
    rows, _ = JUDGED["diagonal_joint"]()
    broken = [row | {"gap": [500.0, 1.0, -1e6, -1e9]} if row["rule"].startswith("thesis") else row for row in rows]
    assert module.verdict(broken)[1].mark == "disagrees"
    assert "inf" in module.table([row | {"rejected": 0} for row in broken])[1][2]


@pytest.mark.parametrize("name", names(FOLDER))
def test_what_is_not_the_papers_setting_is_named(name):
    module = experiment(name, FOLDER)  # refuses a cut that is not named
    assert set(differences(module)) <= set(module.CUT)
    if name in NONE_PRINTED:
        assert len(module.PUBLISHED) == 1


# --- What judges ---


def test_a_finding_agrees_beyond_the_spread_of_every_table():
    of = judged({"a": [2.0, 3.0, 4.0], "b": [1.0, 2.0, 0.3]}, "nats", "so")
    assert of.mark == "agrees" and of.where == "b" and of.runs == 3 and of.unit == "nats" and of.said == "so"
    assert of.margin == pytest.approx(1.1) and of.spread == pytest.approx(np.std([1.0, 2.0, 0.3], ddof=1))
    assert judged({"a": [2.0, 3.0], "b": [1.0, -0.5]}, "").mark == "within the spread"
    assert judged({"a": [2.0, 3.0], "b": [-1.0, -1.5]}, "").mark == "disagrees"
    assert judged({"a": [2.0, 3.0], "b": [5.0]}, "").mark == "one run"
    assert judged({"a": [2.0, 3.0]}, "", edges=["Adam 0.1"]).mark == "rate at the edge"
    assert judged({}, "").mark == "untested" == judged({"a": []}, "").mark
    assert judged({"a": [0.0, 0.0]}, "").mark == "within the spread"
    with pytest.raises(ValueError, match="a margin on a is not a number"):
        judged({"a": [np.nan, 1.0]}, "")
    np.testing.assert_allclose(within([0.3, -0.3, 2.0], 1.0), [0.7, 0.7, -1.0])


def test_one_word_for_all_findings():
    good, bad, open_ = judged({"": [1.0, 1.1]}, ""), judged({"": [-1.0, -1.1]}, ""), judged({"": [-1.0, 1.1]}, "")
    assert overall([good, good])[0] == "agrees"
    word, why = overall([good, bad, open_, untested("no rows")])
    assert word == "agrees in part"
    assert why == "findings by number; agrees: 1; within the spread: 3; disagrees: 2; untested: 4"
    assert overall([good, good], ["steps"]) == (
        "agrees in part",
        "findings by number; agrees: 1, 2. Short of the paper's setting: steps",
    )
    assert overall([open_, bad])[0] == "disagrees" and overall([open_, untested("")])[0] == "undecided"
    assert overall([untested("no finding")]) == ("untested", "no finding")
