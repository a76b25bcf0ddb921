"""Messages of a few hundred bytes between the processes of one host, through memory that all of them map.

A message over gloo takes the host 30 to 130 us on either side, which a device that computes for less than a
millisecond waits for. Here a rank writes its message and reads those of the others in about 10 us.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import time
import weakref
import zlib

MESSAGE_BYTES = 4096  # at most
_HEADER = struct.Struct("@QII")  # the number of the message (written and read at once), its length, its checksum
_SLOT_BYTES = _HEADER.size + MESSAGE_BYTES

# Seconds. A rank that waits longer leaves the processor to others, and looks whether the other rank still runs.
_MOST_POLLING, _PAUSE, _BETWEEN_CHECKS = 2e-3, 1e-4, 0.1


def host_identity() -> str:
    """Return what the processes of one host have in common that see each other, their files and their network."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot_id = file.read().strip()
    return " ".join([boot_id, *(os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "mnt", "net"))])


def _slot_bytes(size: int) -> int:
    return 2 * size * _SLOT_BYTES


class Mailbox:
    """The slots of all ranks in a file in memory. Each rank posts one message, and then reads those of all.

    Slots are double-buffered: a rank that posts message n has read n - 1 of all ranks, so that nobody reads n - 2
    any more. A message counts when its number and its checksum are right, in whatever order its bytes become
    visible. Each rank locks a byte of the file, and the system releases the lock when its process ends, or closes
    the file.

    `file` is a descriptor of one that `create` made with this token, and is closed with the mailbox. If the
    process closes any other descriptor of the file, its lock is lost. A rank waits `timeout` seconds for another
    one.
    """

    def __init__(self, file: int, token: bytes, rank: int, size: int, timeout: float):
        if os.pread(file, len(token), _slot_bytes(size)) != token:
            raise OSError("another file than that of the first rank")
        self._file, self._rank, self._size, self._timeout = file, rank, size, timeout
        self._n_posted = 0
        self._memory = mmap.mmap(file, _slot_bytes(size))
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)
        self.close = weakref.finalize(self, os.close, file)

    @staticmethod
    def create(token: bytes, size: int) -> int:
        """Return the descriptor of a file in memory for so many ranks, with a token by which they recognise it."""
        file = os.memfd_create("upsweep")
        os.pwrite(file, token, _slot_bytes(size))
        return file

    def _slot(self, rank: int, number: int) -> int:
        return (number % 2 * self._size + rank) * _SLOT_BYTES

    def post(self, message: bytes) -> int:
        """Send a message to all ranks; return its number."""
        number = self._n_posted = self._n_posted + 1
        begin = self._slot(self._rank, number)
        self._memory[begin + _HEADER.size : begin + _HEADER.size + len(message)] = message
        _HEADER.pack_into(self._memory, begin, number, len(message), zlib.crc32(message, number))
        return number

    def collect(self, number: int) -> list[bytes]:
        """Return the messages of this number of all ranks; wait for them."""
        return [self._wait(rank, number) for rank in range(self._size)]

    def _wait(self, rank: int, number: int) -> bytes:
        begin = next_check = None
        while (message := self._read(rank, number)) is None:
            now = time.monotonic()
            if begin is None or next_check is None:
                begin, next_check = now, now + _BETWEEN_CHECKS
            if now < begin + _MOST_POLLING:
                os.sched_yield()  # lets other threads and processes run; time.sleep(0) takes 50 us
                continue
            time.sleep(_PAUSE)
            if now < next_check:
                continue
            next_check = now + _BETWEEN_CHECKS
            if self._has_ended(rank) and self._read(rank, number) is None:
                raise RuntimeError(f"rank {rank} of the group has ended, or has left the group")
            if now > begin + self._timeout:
                raise RuntimeError(f"rank {rank} of the group: timed out after {self._timeout:g} s")
        return message

    def _read(self, rank: int, number: int) -> bytes | None:
        begin = self._slot(rank, number)
        posted, length, checksum = _HEADER.unpack_from(self._memory, begin)
        if posted > number:
            raise RuntimeError(f"rank {rank} of the group is ahead, since a call of it was interrupted")
        if posted != number:
            return None
        begin += _HEADER.size
        message = self._memory[begin : begin + length]
        return message if zlib.crc32(message, number) == checksum else None

    def _has_ended(self, rank: int) -> bool:
        if rank == self._rank:
            return False
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)
        except OSError:
            return False
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, rank)
        return True
