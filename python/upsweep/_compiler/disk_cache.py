"""The cache of compiled code on disk, addressed by a digest of what the code was compiled from.

Files lie in the folder named by the environment variable ``UPSWEEP_CACHE_DIR``, else in ``upsweep`` in the XDG
cache folder (``$XDG_CACHE_HOME`` or ``~/.cache``). An empty value, ``UPSWEEP_CACHE_DIR=``, switches the cache off.
The folder is created for its owner alone. A folder of another user, or one that others may write to, is not used:
code from there would run with the rights of this process.

Each file holds a digest of its key and code, so that a damaged file is a miss. The cache never fails a
computation: a file that cannot be read is a miss, one that cannot be written a warning. Only an unsafe folder
named by the variable, or a file in its place, is an error.

The loaders of LLVM and NVRTC code call `fetch_or_compile`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import stat
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

VARIABLE = "UPSWEEP_CACHE_DIR"
_MAGIC = b"upsweep-code-1\n"
_DIGEST_BYTES = 32
_NAME_DIGITS = 40
_MAX_FILES = 4000  # a few dozen MB; beyond, the older half is deleted
_DAY = 86_400 * 10**9  # in nanoseconds
_PRUNING_PREFIX = "0"  # storing a file whose name begins with it counts the files: one in sixteen
_FILES = ("[0-9a-f]" * _NAME_DIGITS + ".bin", ".new-*")  # no other file in the folder is deleted

_warned: set[Path] = set()


class Status(NamedTuple):
    """The folder of the cache, its size, and why it cannot be used (None if it can)."""

    folder: Path | None
    n_bytes: int
    problem: str | None


def folder() -> Path | None:
    """The cache folder, created if it is missing; None if it cannot be used.

    If ``UPSWEEP_CACHE_DIR`` names it, a folder of another user, or one that others may write to, raises
    PermissionError, and a file NotADirectoryError.
    """
    path, problem = _locate()
    return path if problem is None else None


def _locate() -> tuple[Path | None, str | None]:
    """The absolute path of the folder, which is created, and why it cannot be used."""
    named = os.environ.get(VARIABLE)
    if named == "":
        return None, f"{VARIABLE} is set to nothing"
    path = _default_path() if named is None else _absolute(named)
    if path is None:
        return None, "there is no home directory"
    refusal: type[OSError]
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _is_safe(path.stat()):
            return path, None
        refusal, problem = PermissionError, "belongs to somebody else, or others may write to it"
    except (FileExistsError, NotADirectoryError):
        refusal, problem = NotADirectoryError, "is not a folder, or lies below a file"
    except OSError as error:
        return path, error.strerror
    if named is None:
        return path, problem
    raise refusal(
        f"{VARIABLE}={named!r} {problem}: set it to a folder of your own, or to nothing to switch the cache off"
    )


def _default_path() -> Path | None:
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the XDG specification: relative paths are ignored
        base = os.path.expanduser("~/.cache")
    return Path(base) / "upsweep" if os.path.isabs(base) else None


@functools.cache
def _absolute(path: str) -> Path:
    """The absolute path, fixed by the first call: a later `os.chdir` does not move the cache."""
    return Path(os.path.abspath(os.path.expanduser(path)))


def _is_safe(status: os.stat_result) -> bool:
    """Whether a folder or file belongs to this user, and no other user may write to it."""
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


def _name(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:_NAME_DIGITS] + ".bin"


def _with_digest(key: str, code: bytes) -> bytes:
    """The contents of a file."""
    return _MAGIC + hashlib.sha256(key.encode() + code).digest() + code


def _open_at_once(path: str, flags: int) -> int:
    """Open a file without following a symbolic link, and without waiting for the other end of a FIFO."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)


def fetch(key: str) -> bytes | None:
    """The code stored under a key; None if there is none, or it cannot be read or is damaged."""
    path = folder()
    if path is None:
        return None
    try:
        with open(path / _name(key), "rb", opener=_open_at_once) as file:
            file_status = os.fstat(file.fileno())
            if not (stat.S_ISREG(file_status.st_mode) and _is_safe(file_status)):
                return None
            data = file.read()
    except OSError:
        return None
    code = data[len(_MAGIC) + _DIGEST_BYTES :]
    return code if data == _with_digest(key, code) else None


def store(key: str, code: bytes) -> None:
    """Store code under a key, replacing the file atomically; warn once for each folder that cannot be written."""
    path, problem = _locate()
    if path is None:
        return
    if problem is None:
        try:
            _write(path, _name(key), _with_digest(key, code))
        except OSError as error:
            problem = error.strerror or str(error)
    if problem is not None and path not in _warned:
        _warned.add(path)
        warnings.warn(
            f"compiled code cannot be stored in {str(path)!r} ({problem}): it will be compiled again by each "
            f"process. Set {VARIABLE} to a folder that can be written to, or to nothing to switch the cache off",
            RuntimeWarning,
            stacklevel=2,
        )


def _write(path: Path, name: str, data: bytes) -> None:
    handle, new = tempfile.mkstemp(dir=path, prefix=".new-")  # mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(new, path / name)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise
    if name.startswith(_PRUNING_PREFIX):
        _prune(path)


def fetch_or_compile(key: str, make: Callable[[], bytes]) -> bytes:
    """The code stored under a key; if there is none, `make` it and store it."""
    code = fetch(key)
    if code is None:
        code = make()
        store(key, code)
    return code


def status() -> Status:
    """Where the cache is, and whether it can be used; tries to write a file."""
    path, problem = _locate()
    if path is None or problem is not None:
        return Status(path, 0, problem)
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(bytes(4096))
    except OSError as error:
        problem = error.strerror
    return Status(path, sum(n_bytes for _, n_bytes, _ in _dated_files(path)), problem)


def _dated_files(path: Path) -> list[tuple[int, int, Path]]:
    """The modification time, the size and the path of each file of the cache."""
    dated = []
    for pattern in _FILES:
        for file in path.glob(pattern):
            with contextlib.suppress(FileNotFoundError):  # another process deletes old files as well
                file_status = file.lstat()
                dated.append((file_status.st_mtime_ns, file_status.st_size, file))
    return dated


def _prune(path: Path) -> None:
    """Delete the older half of the files if there are too many."""
    dated = sorted(_dated_files(path))
    yesterday = time.time_ns() - _DAY
    for written, _, file in dated[: len(dated) // 2 if len(dated) > _MAX_FILES else 0]:
        if file.suffix == ".bin" or written < yesterday:  # not a file that another process is writing
            file.unlink(missing_ok=True)


def source_digest(*folders: str | Path) -> str:
    """Return a digest of all Python sources below some folders: code made by other sources has another key."""
    digest = hashlib.sha256()
    for root in folders:
        for path in sorted(Path(root).rglob("*.py")):
            digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()
