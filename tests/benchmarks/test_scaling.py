"""The benchmark over numbers of threads: which numbers, and rows beside those of one thread."""

import pytest
import upsweep
from upsweep_bench import cli, scaling
from upsweep_bench.scans import Case

pytest.importorskip("llvmlite")


@pytest.mark.parametrize("most, expected", [(1, [1]), (2, [1, 2]), (12, [1, 2, 4, 8, 12]), (16, [1, 2, 4, 8, 16])])
def test_thread_counts(most, expected):
    assert scaling.thread_counts(most) == expected


def test_every_operation_has_a_case():
    operations = {case.label.split()[0] for case in scaling.cases()}
    assert operations >= {"discounted_cumsum", "linear_recurrence", "bincount", "histogram", "te", "Gaussian"}


def test_rows_are_measured_with_each_number_of_threads(monkeypatch):
    used = []

    def check(case, arrays):
        used.append(upsweep.get_num_threads())

    monkeypatch.setattr("upsweep_bench.compare.check", check)
    upsweep.set_num_threads(3)
    try:
        rows, wrong = cli.measure_scaling([Case("cumulative_sum", (4, 1000))], rounds=1, warmup=0)
    finally:
        upsweep.set_num_threads(None)
    assert not wrong and used == [1, 2, 3]
    assert [row.case.partition(", ")[2] for row in rows] == ["1 thread", "2 threads", "3 threads"]
    first, last = rows[0], rows[-1]
    assert first.note.startswith("1.0 times") and last.note.startswith(f"{first.seconds / last.seconds:.1f} times")
