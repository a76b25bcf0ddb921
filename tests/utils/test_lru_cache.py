"""What is kept for later calls: so many, the ones in use; nothing of what failed."""

import pytest
from upsweep._utils.lru_cache import Kept


def test_what_rested_longest_goes_first():
    kept, made = Kept(2), []

    def fetch(key):
        return kept.fetch_or_make(key, lambda: made.append(key) or f"value {key}")

    assert [fetch(key) for key in "abacab"] == [f"value {key}" for key in "abacab"]
    assert made == ["a", "b", "c", "b"]
    kept.clear()
    fetch("a")
    assert made[4:] == ["a"]


def test_a_failure_is_not_kept():
    kept = Kept(2)
    with pytest.raises(ZeroDivisionError):
        kept.fetch_or_make("a", lambda: 1 / 0)
    assert kept.fetch_or_make("a", lambda: 1) == 1
