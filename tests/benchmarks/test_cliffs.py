"""The benchmark of cliffs: cases are right, a wrong answer is not timed, the slowest rows are named."""

import dataclasses

import numpy as np
import pytest
from upsweep.bench.report import Row
from upsweep_bench import cli, cliffs, compare

pytest.importorskip("llvmlite")

CASES = [case for case in cliffs.cases(quick=True) if case.neighbour]
SAMPLE = [case for operation in cliffs.OPERATIONS for case in CASES if case.operation == operation][::9]


@pytest.mark.parametrize("case", SAMPLE, ids=lambda case: case.label)
def test_answers_are_right(case):
    arrays = case.arrays()
    assert arrays.error(arrays.answer(case.function(arrays))) <= arrays.allowed()


def test_every_operation_varies_layouts_and_data():
    assert {case.operation for case in CASES} == set(cliffs.OPERATIONS)
    of_data = {case.operation for case in CASES if case.threshold == 1 / 2}
    assert set(cliffs.OPERATIONS) - of_data == {"te sum over axis 0", "te sum over axis 1"}
    assert all(case.threshold in (1 / 2, 1 / 3) or "line" in case.name or "columns" in case.name or
               "overflow" in case.name for case in CASES)  # fmt: skip


def test_a_case_is_compared_per_element():
    case = next(case for case in CASES if case.n_elements != case.neighbour.n_elements)
    row = compare.measure_case(case, rounds=1)[0]
    assert row.value > 0 and case.versus_scale == case.n_elements / case.neighbour.n_elements


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 2.0])
def test_a_wrong_answer_is_not_timed(wrong):
    def with_one(answer):
        answer = np.array(answer)
        answer[0, 5] = wrong
        return answer

    plain = CASES[0].neighbour
    problem = plain.build()
    changed = dataclasses.replace(
        plain, build=lambda: problem._replace(examine=lambda result: problem.examine(with_one(result)))
    )
    with pytest.raises(compare.WrongResult, match="plain"):
        compare.check(changed, changed.arrays())


def test_the_slowest_rows(capsys):
    rows = [Row(name, "f", 1e-3, value, "x", threshold) for name, value, threshold in (
        ("a", 0.2, 1 / 3), ("b", 0.5, 1 / 3), ("c", 0.8, 1 / 2), ("d", 0.01, None),
    )]  # fmt: skip
    assert [row.case for row in cliffs.worst(rows)] == ["a", "c"]
    cliffs.print_rows(rows)
    printed = capsys.readouterr().out
    assert "2 of 3 thresholds met" in printed and "a, f: 5.00 times slower" in printed
    assert "c, f: 1.25 times slower" in printed and printed.index("\nb ") < printed.index("\na ")


def test_the_command_selects_cases():
    assert cli.cases("cliffs", True, "cuda") == []
    chosen = cli.cases("cliffs", True, "cpu", "histogram, half")
    assert {case.variation for case in chosen} == {"half NaN", "half infinite", "half outside", "half subnormal"}
