"""The LRU cache: its size, which entry goes, and nothing of a construction that failed."""

import threading

import pytest
from upsweep._utils.lru_cache import LRUCache


def test_the_least_recently_used_entry_goes_first():
    cache, built = LRUCache(2), []

    def fetch(key):
        return cache.get_or_build(key, lambda: built.append(key) or f"value {key}")

    assert [fetch(key) for key in "abacab"] == [f"value {key}" for key in "abacab"]
    assert built == ["a", "b", "c", "b"]
    cache.clear()
    fetch("a")
    assert built[4:] == ["a"]


def test_a_failure_is_not_stored():
    cache = LRUCache(2)
    with pytest.raises(ZeroDivisionError):
        cache.get_or_build("a", lambda: 1 / 0)
    assert cache.get_or_build("a", lambda: 1) == 1


def test_get_marks_an_entry_as_used_and_assignment_replaces():
    cache = LRUCache(2)
    cache["a"], cache["b"] = 1, 2
    assert cache.get("a") == 1 and cache.get("c") is None
    cache["c"] = 3
    assert (cache.get("a"), cache.get("b"), cache.get("c"), len(cache)) == (1, None, 3, 2)
    cache["a"] = 4
    assert cache.get("a") == 4 and len(cache) == 2


def test_threads_that_build_the_same_value_get_one_object():
    cache, barrier, results = LRUCache(2), threading.Barrier(2), []

    def build():
        barrier.wait()
        return object()

    threads = [threading.Thread(target=lambda: results.append(cache.get_or_build("a", build))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results[0] is results[1]
