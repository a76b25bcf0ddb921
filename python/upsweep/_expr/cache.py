"""Compiled code on disk: found by what it was made from, checked before it is used.

Code lies in the folder that the environment variable ``UPSWEEP_CACHE_DIR`` names, else in ``upsweep`` in the
XDG cache folder (``$XDG_CACHE_HOME`` or ``~/.cache``). Set to nothing, ``UPSWEEP_CACHE_DIR=``, it turns the
disk off. The folder is made for its owner alone; one of somebody else, or that others may write to, is not
used: code from there would run as us.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

__all__ = ["fetch", "fetch_or_make", "folder", "source_digest", "store"]

_MAGIC = b"upsweep-code-1\n"
_DIGEST_BYTES = 32
_MOST_FILES = 4000  # a few dozen MB; beyond, the half that was written first goes
_LOOK_AT = "0"  # names that begin so have a look at the others: one in sixteen


def folder() -> Path | None:
    """Where code is kept, made if it is not there; None where there is no place for it.

    Raises
    ------
    PermissionError
        ``UPSWEEP_CACHE_DIR`` names a folder that is not ours alone.
    """
    named = os.environ.get("UPSWEEP_CACHE_DIR")
    if named == "":
        return None
    if named is not None:
        path = Path(named)
    else:
        home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        path = Path(home) / "upsweep"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
    except OSError:
        if named is not None:
            raise
        return None  # no home, or one that cannot be written to: compiled code is kept in memory alone
    if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022:
        return path
    if named is not None:
        raise PermissionError(f"UPSWEEP_CACHE_DIR={named!r} belongs to somebody else, or others may write to it")
    return None


def _path(key: str) -> Path | None:
    place = folder()
    return None if place is None else place / (hashlib.sha256(key.encode()).hexdigest()[:40] + ".bin")


def fetch(key: str) -> bytes | None:
    """The code that was stored under a key; None if there is none, or it was damaged."""
    path = _path(key)
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_uid != os.getuid():
                return None
            data = file.read()
    except FileNotFoundError:
        return None
    head = len(_MAGIC) + _DIGEST_BYTES
    code = data[head:]
    whole = (
        data[: len(_MAGIC)] == _MAGIC and hashlib.sha256(key.encode() + code).digest() == data[len(_MAGIC) : head]
    )
    return code if whole else None


def store(key: str, code: bytes) -> None:
    """Keep code under a key. Readers see all of it or nothing."""
    path = _path(key)
    if path is None:
        return
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")  # mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(_MAGIC + hashlib.sha256(key.encode() + code).digest() + code)
        os.replace(name, path)
        if path.name.startswith(_LOOK_AT):
            _forget_the_oldest(path.parent)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


def fetch_or_make(key: str, make: Callable[[], bytes]) -> bytes:
    """The code that was stored under a key; if there is none it is made, and stored."""
    code = fetch(key)
    if code is None:
        code = make()
        store(key, code)
    return code


def _forget_the_oldest(place: Path) -> None:
    files = list(place.glob("*.bin"))
    if len(files) <= _MOST_FILES:
        return
    dated = []
    for file in files:
        with contextlib.suppress(FileNotFoundError):  # another process forgets as well
            dated.append((file.stat().st_mtime_ns, file))
    for _, file in sorted(dated)[: len(dated) // 2]:
        file.unlink(missing_ok=True)


def source_digest(*folders: str | Path) -> str:
    """A digest of the Python sources in folders: code made by other sources has another key."""
    digest = hashlib.sha256()
    for place in folders:
        for path in sorted(Path(place).glob("*.py")):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
