"""Peers run in processes of their own: what one breaks stays there."""

import os

import pytest
from upsweep_bench import isolated


def answer(item):
    """Picklable, since it is called in another process."""
    if item == "abort":
        os.abort()
    if item == "leave":
        os._exit(3)
    if item == "raise":
        raise ValueError("not this one")
    return item * 2, os.getpid()


def test_answers_come_from_one_other_process():
    results = list(isolated.each(answer, [1, 2, 3]))
    assert [(result[0], reason) for result, reason in results] == [(2, ""), (4, ""), (6, "")]
    pids = {result[1] for result, _ in results}
    assert len(pids) == 1 and os.getpid() not in pids


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ("abort", "its process was ended by SIGABRT"),
        ("leave", "its process ended with code 3"),
        ("raise", "ValueError: not this one"),
    ],
)
def test_a_failure_is_reported_and_the_next_item_begins_a_new_process(item, reason):
    (first, _), failed, (second, _) = isolated.each(answer, [1, item, 2])
    assert failed == (None, reason)
    assert first[0] == 2 and second[0] == 4 and first[1] != second[1]


def test_two_failures_are_enough():
    *_, last = isolated.each(answer, ["leave", "abort", 1])
    assert last == (None, "not tried after 2 failures")


def test_closing_the_iterator_stops_the_process():
    results = isolated.each(answer, [1, 2])
    assert next(results)[0][0] == 2
    results.close()
