"""Compiled code on disk: who may read and write it, damage, and that it is found again."""

import os
import stat

import pytest
from upsweep._expr import cache


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("UPSWEEP_CACHE_DIR", str(tmp_path / "code"))
    return tmp_path / "code"


def test_what_is_stored_is_found(place):
    assert cache.fetch("a") is None
    cache.store("a", b"code")
    cache.store("b", b"")
    assert cache.fetch("a") == b"code"
    assert cache.fetch("b") == b""
    assert cache.fetch("c") is None
    cache.store("a", b"other")
    assert cache.fetch("a") == b"other"


def test_it_is_for_its_owner_alone(place):
    cache.store("a", b"code")
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert [stat.S_IMODE(file.stat().st_mode) for file in place.iterdir()] == [0o600]


def test_a_folder_that_others_may_write_to_is_refused(place):
    place.mkdir()
    place.chmod(0o777)
    with pytest.raises(PermissionError, match="UPSWEEP_CACHE_DIR"):
        cache.store("a", b"code")


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root gives files away")
def test_what_belongs_to_somebody_else_is_not_used(place):
    cache.store("a", b"code")
    (file,) = place.iterdir()
    os.chown(file, 12345, 12345)
    assert cache.fetch("a") is None
    os.chown(place, 12345, 12345)
    with pytest.raises(PermissionError, match="UPSWEEP_CACHE_DIR"):
        cache.fetch("a")


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:20], lambda data: b"",
                                    lambda data: data[:-1] + b"x", lambda data: b"x" + data])  # fmt: skip
def test_damaged_code_is_not_used(place, damage):
    cache.store("a", b"code of some length")
    (file,) = place.iterdir()
    file.write_bytes(damage(file.read_bytes()))
    assert cache.fetch("a") is None


def test_code_of_another_key_is_not_used(place):
    cache.store("a", b"code of a")
    (of_a,) = place.iterdir()
    cache.store("b", b"code of b")
    (of_b,) = set(place.iterdir()) - {of_a}
    of_b.write_bytes(of_a.read_bytes())
    assert cache.fetch("b") is None


def test_nothing_is_left_of_a_write_that_fails(place, monkeypatch):
    def fail(*_):
        raise OSError("no room")

    cache.store("a", b"code")
    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no room"):
        cache.store("b", b"code")
    assert len(list(place.iterdir())) == 1


def test_set_to_nothing_it_is_off(place, monkeypatch):
    monkeypatch.setenv("UPSWEEP_CACHE_DIR", "")
    assert cache.folder() is None
    cache.store("a", b"code")
    assert cache.fetch("a") is None


def test_without_a_name_it_is_in_the_xdg_cache_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("UPSWEEP_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.folder() == tmp_path / "upsweep"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache.folder() == tmp_path / "home" / ".cache" / "upsweep"


def test_sources_have_a_digest(tmp_path):
    (tmp_path / "a.py").write_text("1")
    first = cache.source_digest(tmp_path)
    assert cache.source_digest(tmp_path) == first
    (tmp_path / "a.py").write_text("2")
    assert cache.source_digest(tmp_path) != first


def test_the_oldest_go_when_there_are_many(place, monkeypatch):
    monkeypatch.setattr(cache, "_MOST_FILES", 6)
    monkeypatch.setattr(cache, "_LOOK_AT", "")
    for n in range(7):
        cache.store(str(n), b"code")
        for file in place.iterdir():  # clocks of files may be coarse
            status = file.stat()
            os.utime(file, ns=(status.st_atime_ns - 10**9, status.st_mtime_ns - 10**9))
    cache.store("new", b"code")
    kept = [n for n in map(str, range(7)) if cache.fetch(n) == b"code"]
    assert cache.fetch("new") == b"code"
    assert kept == ["3", "4", "5", "6"]
