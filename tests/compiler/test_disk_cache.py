"""Compiled code on disk: who may read and write it, damage, and that it is found again."""

import os
import stat
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest
import upsweep
from helpers import command, run_python
from upsweep._compiler import disk_cache

FORMULA = """
import numpy as np, upsweep
x = np.arange(6.0).reshape(3, 2)
formula = upsweep.Genred("Sin(SqDist(x, y))", ["x = Vi(2)", "y = Vj(2)"], axis=1)
assert np.isfinite(formula(x, x)).all()
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("UPSWEEP_CACHE_DIR", str(tmp_path / "code"))
    return tmp_path / "code"


def test_what_is_stored_is_found(place):
    assert disk_cache.fetch("a") is None
    disk_cache.store("a", b"code")
    disk_cache.store("b", b"")
    assert disk_cache.fetch("a") == b"code"
    assert disk_cache.fetch("b") == b""
    assert disk_cache.fetch("c") is None
    disk_cache.store("a", b"other")
    assert disk_cache.fetch("a") == b"other"


def test_it_is_for_its_owner_alone(place):
    disk_cache.store("a", b"code")
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert [stat.S_IMODE(file.stat().st_mode) for file in place.iterdir()] == [0o600]


def test_a_folder_that_others_may_write_to_is_refused(place):
    place.mkdir()
    place.chmod(0o777)
    with pytest.raises(PermissionError, match="UPSWEEP_CACHE_DIR"):
        disk_cache.store("a", b"code")


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root gives files away")
def test_what_belongs_to_somebody_else_is_not_used(place):
    disk_cache.store("a", b"code")
    (file,) = place.iterdir()
    os.chown(file, 12345, 12345)
    assert disk_cache.fetch("a") is None
    os.chown(place, 12345, 12345)
    with pytest.raises(PermissionError, match="UPSWEEP_CACHE_DIR"):
        disk_cache.fetch("a")


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:20], lambda data: b"",
                                    lambda data: data[:-1] + b"x", lambda data: b"x" + data])  # fmt: skip
def test_damaged_code_is_not_used(place, damage):
    disk_cache.store("a", b"code of some length")
    (file,) = place.iterdir()
    file.write_bytes(damage(file.read_bytes()))
    assert disk_cache.fetch("a") is None


def test_code_of_another_key_is_not_used(place):
    disk_cache.store("a", b"code of a")
    (of_a,) = place.iterdir()
    disk_cache.store("b", b"code of b")
    (of_b,) = set(place.iterdir()) - {of_a}
    of_b.write_bytes(of_a.read_bytes())
    assert disk_cache.fetch("b") is None


def test_nothing_is_left_of_a_write_that_fails(place, monkeypatch):
    def fail(*_):
        raise OSError("no room")

    disk_cache.store("a", b"code")
    monkeypatch.setattr(os, "replace", fail)
    with pytest.warns(RuntimeWarning, match="no room"):
        disk_cache.store("b", b"code")
    assert len(list(place.iterdir())) == 1


def test_set_to_nothing_it_is_off(place, monkeypatch):
    monkeypatch.setenv("UPSWEEP_CACHE_DIR", "")
    assert disk_cache.folder() is None
    disk_cache.store("a", b"code")
    assert disk_cache.fetch("a") is None


def test_without_a_name_it_is_in_the_xdg_cache_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("UPSWEEP_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert disk_cache.folder() == tmp_path / "upsweep"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert disk_cache.folder() == tmp_path / "home" / ".cache" / "upsweep"


def test_sources_have_a_digest(tmp_path):
    (tmp_path / "a.py").write_text("1")
    first = disk_cache.source_digest(tmp_path)
    assert disk_cache.source_digest(tmp_path) == first
    (tmp_path / "a.py").write_text("2")
    second = disk_cache.source_digest(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.py").write_text("2")
    assert len({first, second, disk_cache.source_digest(tmp_path)}) == 3


def test_the_digest_covers_all_modules_that_generate_code(monkeypatch):
    pytest.importorskip("llvmlite")
    from upsweep._compiler.llvm import jit

    folders = []
    monkeypatch.setattr(disk_cache, "source_digest", lambda *args: folders.extend(args) or "")
    jit.sources.__wrapped__()
    code = """
    import sys
    import upsweep._compiler.llvm.pairs.kernel, upsweep._compiler.llvm.scans.kernel
    import upsweep._compiler.llvm.scans.chunk_aggregates
    for name, module in sys.modules.items():
        if name.startswith("upsweep._compiler.") and not module.__file__.endswith("__init__.py"):
            print(module.__file__)
    """
    modules = [Path(line) for line in run_python(code).splitlines()]
    assert len(modules) > 20
    outside = [path for path in modules if not any(path.is_relative_to(folder) for folder in folders)]
    assert {path.name for path in outside} <= {"disk_cache.py"}


def test_the_oldest_go_when_there_are_many(place, monkeypatch):
    monkeypatch.setattr(disk_cache, "_MAX_FILES", 6)
    monkeypatch.setattr(disk_cache, "_PRUNING_PREFIX", "")
    for n in range(7):
        disk_cache.store(str(n), b"code")
        for file in place.iterdir():  # clocks of files may be coarse
            status = file.stat()
            os.utime(file, ns=(status.st_atime_ns - 10**9, status.st_mtime_ns - 10**9))
    disk_cache.store("new", b"code")
    cached = [n for n in map(str, range(7)) if disk_cache.fetch(n) == b"code"]
    assert disk_cache.fetch("new") == b"code"
    assert cached == ["3", "4", "5", "6"]


@pytest.mark.parametrize("where", ["", "relative/../code"])
def test_a_full_disk_is_one_warning(tmp_path, where):
    """The limit on the size of files makes each write fail, for root as well."""
    code = f"""
    import os, resource, warnings
    os.environ["UPSWEEP_CACHE_DIR"] = {where or str(tmp_path)!r}
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
    warnings.simplefilter("always")
    with warnings.catch_warnings(record=True) as seen:
        exec({FORMULA!r})
        exec({FORMULA.replace("Sin", "Cos")!r})
    (warning,) = seen
    assert warning.category is RuntimeWarning
    folder = upsweep.show_config()["cache_dir"]
    assert os.path.isabs(folder) and os.listdir(folder) == []
    for word in (folder, "too large", "UPSWEEP_CACHE_DIR"):
        assert word in str(warning.message), str(warning.message)
    assert "too large" in upsweep.show_config()["cache_problem"]
    """
    run_python(code)


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a file system where nobody creates folders")
@pytest.mark.parametrize("variable", ["UPSWEEP_CACHE_DIR", "XDG_CACHE_HOME"])
def test_a_folder_that_cannot_be_created_is_one_warning(monkeypatch, variable):
    monkeypatch.delenv("UPSWEEP_CACHE_DIR")
    monkeypatch.setattr(disk_cache, "_warned", set())
    monkeypatch.setenv(variable, "/proc/no/cache")
    with pytest.warns(RuntimeWarning, match=r"/proc/no/cache.*UPSWEEP_CACHE_DIR"):
        disk_cache.store("a", b"code")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        disk_cache.store("a", b"code")
        assert disk_cache.fetch("a") is None
    assert disk_cache.status().folder is not None and disk_cache.status().problem


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        monkeypatch.setenv("UPSWEEP_CACHE_DIR", str(path))
        for call in (disk_cache.folder, lambda: disk_cache.fetch("a"), lambda: disk_cache.store("a", b"")):
            with pytest.raises(NotADirectoryError, match=r"UPSWEEP_CACHE_DIR=.*file"):
                call()
        assert "UPSWEEP_CACHE_DIR" in upsweep.show_config()["cache_problem"]


def test_what_takes_the_place_of_a_file_is_a_miss_and_is_replaced(place, tmp_path):
    def links(path):
        disk_cache.store("b", b"code")
        (other,) = set(place.iterdir()) - {path}
        other.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")

    def allows_others(path):
        disk_cache.store("a", b"code")
        path.chmod(0o606)

    for replace in (os.mkfifo, links, allows_others):
        disk_cache.store("a", b"code")
        (path,) = place.iterdir()
        path.unlink()
        replace(path)
        result = []
        reader = threading.Thread(target=lambda result=result: result.append(disk_cache.fetch("a")), daemon=True)
        reader.start()
        reader.join(10)
        assert result == [None]
        disk_cache.store("a", b"code")
        assert disk_cache.fetch("a") == b"code"


def test_a_folder_in_the_place_of_a_file_is_a_miss(place, monkeypatch):
    monkeypatch.setattr(disk_cache, "_warned", set())
    disk_cache.store("a", b"code")
    (path,) = place.iterdir()
    path.unlink()
    path.mkdir()
    assert disk_cache.fetch("a") is None
    with pytest.warns(RuntimeWarning, match="directory"):
        disk_cache.store("a", b"code")


def test_every_failing_read_is_a_miss(place, monkeypatch):
    def fail(*_):
        raise OSError(5, "input/output error")

    disk_cache.store("a", b"code")
    monkeypatch.setattr(disk_cache, "_open_at_once", fail)
    assert disk_cache.fetch("a") is None


def test_a_deleted_folder_is_created_again(place):
    disk_cache.store("a", b"code")
    for file in place.iterdir():
        file.unlink()
    place.rmdir()
    assert disk_cache.fetch("a") is None
    disk_cache.store("a", b"code")
    assert disk_cache.fetch("a") == b"code"


def test_the_path_is_expanded_and_does_not_follow_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    monkeypatch.setattr(disk_cache, "_absolute", disk_cache._absolute.__wrapped__)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("UPSWEEP_CACHE_DIR", "~/code")
    assert disk_cache.folder() == tmp_path / "code"
    code = """
    import os
    from upsweep._compiler import disk_cache
    os.chdir("one")
    disk_cache.store("a", b"code")
    os.chdir("../two")
    assert disk_cache.fetch("a") == b"code" and os.listdir() == []
    """
    run_python(f"import os; os.chdir({str(tmp_path)!r})" + code.replace("\n    ", "\n"), UPSWEEP_CACHE_DIR="code")
    assert len(list((tmp_path / "one" / "code").iterdir())) == 1


def test_a_relative_xdg_cache_folder_is_ignored(tmp_path, monkeypatch):
    monkeypatch.delenv("UPSWEEP_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert disk_cache.folder() == tmp_path / ".cache" / "upsweep"


def test_writers_and_readers_at_once(place):
    """Processes that write, read and delete the same few files; a reader sees all of a file or none."""
    code = """
    import os, sys
    from upsweep._compiler import disk_cache
    disk_cache._MAX_FILES, disk_cache._PRUNING_PREFIX = 3, ""
    for n in range(300):
        key = str(n % 8)
        code = key.encode() * (n * 10)
        disk_cache.store(key, code)
        found = disk_cache.fetch(key)
        assert found is None or set(found) <= set(key.encode())
    """
    lines = "\n".join(line[4:] for line in code.splitlines())
    processes = [subprocess.Popen([sys.executable, "-W", "error", "-c", lines]) for _ in range(3)]
    assert [process.wait(120) for process in processes] == [0, 0, 0]
    assert not list(place.glob(".new-*"))


def test_files_of_others_are_not_deleted(place, monkeypatch):
    monkeypatch.setattr(disk_cache, "_MAX_FILES", 0)
    monkeypatch.setattr(disk_cache, "_PRUNING_PREFIX", "")
    disk_cache.store("a", b"code")
    (place / "weights.bin").write_bytes(b"")
    for abandoned in (".new-1", ".new-2"):
        (place / abandoned).write_bytes(b"")
        os.utime(place / abandoned, (0, 0))
    os.utime(place / "weights.bin", (0, 0))
    disk_cache.store("b", b"code")
    disk_cache.store("b", b"code")
    assert (place / "weights.bin").exists()
    assert not list(place.glob(".new-*"))


def test_the_report_says_where_the_cache_is(place, tmp_path, monkeypatch):
    disk_cache.store("a", b"code")
    config = upsweep.show_config()
    (file,) = place.iterdir()
    assert config["cache_dir"] == str(place)
    assert config["cache_bytes"] == file.stat().st_size
    assert config["cache_problem"] is None
    printed = command(tmp_path, "info", UPSWEEP_CACHE_DIR=str(place)).stdout
    assert str(place) in printed and f"{file.stat().st_size} (0.0 MiB)" in printed
    monkeypatch.setenv("UPSWEEP_CACHE_DIR", "")
    config = upsweep.show_config()
    assert config["cache_dir"] is None and "UPSWEEP_CACHE_DIR" in config["cache_problem"]
    place.chmod(0o777)
    monkeypatch.setenv("UPSWEEP_CACHE_DIR", str(place))
    assert "others may write" in upsweep.show_config()["cache_problem"]


def test_compiling_starts_no_process(place):
    code = """
    import os, subprocess

    def refuse(*args, **keywords):
        raise AssertionError(f"a process is started: {args}")

    import upsweep  # numpy may look at the machine
    os.posix_spawn = os.fork = os.system = os.popen = subprocess.Popen = refuse
    """
    run_python(code + FORMULA.replace("\n", "\n    "))
