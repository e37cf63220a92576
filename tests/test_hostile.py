"""200 hostile cases, the same ones every time. `python tests/hostile.py --cases 10000` runs as many as one likes."""

import pytest
from hostile import Violation, judged, many
from hostile_cases import KINDS, Arrays
from kill import killed, prepared

COUNTS = {"arrays": 95, "settings": 40, "tables": 40, "files": 24, "commands": 1}


@pytest.mark.parametrize("kind", COUNTS)
def test_every_case_ends_in_finite_predictions_or_in_one_sentence(kind):
    outcomes = []

    def each(case):
        try:
            outcomes.append(judged(case))
        except Violation as violation:
            raise AssertionError(
                f"{violation}\nrepeat it: python tests/hostile.py --repeat {str(case)!r}"
            ) from violation

    cases = KINDS[kind]
    sizes = {"arrays": {"N": 12, "D": 2}, "settings": {"N": 12}, "tables": {"N": 12}}.get(kind, {})
    if sizes:  # of one shape, as every one is compiled anew
        cases = cases.map(lambda case: case._replace(**sizes))
    many(cases, COUNTS[kind], 0, each)
    assert len(outcomes) >= 0.9 * COUNTS[kind]  # Hypothesis ends sooner only where it has seen all cases
    done = sum(outcome.startswith(("predicted", "done", "exit 0")) for outcome in outcomes)
    assert done >= 0.05 * len(outcomes), "nearly all cases are refused: they no longer say much"


def test_a_violation_is_seen():
    # The world as it is: NaN in an answer, a foreign error, a sentence of two lines.
    class Broken:
        def __init__(self, error):
            self.error = error

        def run(self):
            raise self.error

    for error in (KeyError("x"), ValueError("one line\nand another"), ValueError("a sentence of somebody else")):
        with pytest.raises(Violation):
            judged(Broken(error))
    plain = Arrays("GPRegressor", (), "plain", "plain", "none", "none", "plain", "predict with std", "None", 12, 2, 0)
    assert judged(plain) == "predicted: predict with std"


def test_a_command_that_is_killed_damages_no_file(tmp_path):
    seconds = prepared(tmp_path)
    outcomes = [
        killed(tmp_path, "fit", 0.5 * seconds["fit"]),
        killed(tmp_path, "predict", -0.001),
        killed(tmp_path, "fit", -0.001),
    ]
    assert any("killed" in outcome for outcome in outcomes)
