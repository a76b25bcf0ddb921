"""Launches of kernels that share one structure of arguments: prepared once, started on any addresses.

`user_scan_launch` prepares its scans with it: a later call copies the structure, fills in addresses and starts.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any

__all__ = ["Launches"]


class Launches:
    """Kernels and the structure that they take, complete except for what differs between calls.

    All fields have 8 bytes. The fields `reduced` and `starts` are the addresses of the call's workspace.
    """

    def __init__(self, structure: ctypes.Structure) -> None:
        self.structure = structure
        self._words: Any = ctypes.c_uint64 * (ctypes.sizeof(structure) // 8)
        self._addresses: list[tuple[int, int]] = []
        self._numbers: list[tuple[int, int]] = []
        self._kernels: list[tuple[Any, int, int, bool]] = []
        self._n_filled = 0
        fields: Any = type(structure)
        self._reduced, self._starts = fields.reduced.offset // 8, fields.starts.offset // 8

    def read_address(self, target: Any, operand: int) -> None:
        """Let `target`, a part of the structure that begins with an address, have the address of an operand."""
        word = (ctypes.addressof(target) - ctypes.addressof(self.structure)) // 8
        self._addresses.append((word, operand))

    def read_number(self, word: int, operand: int) -> None:
        """Let a word of the structure have the value of an operand, as a double."""
        self._numbers.append((word, operand))

    def fill(self, n_bytes: int) -> None:
        """Let that many bytes of the workspace be all ones before the first kernel."""
        self._n_filled = n_bytes

    def add(self, function: Any, n_blocks: int, n_threads: int, *, together: bool = False) -> None:
        """Append a kernel; `together`: a cooperative launch, whose blocks wait for each other."""
        self._kernels.append((function, n_blocks, n_threads, together))

    def start(self, operands: Sequence[Any], memory: tuple[int, int], stream: int) -> None:
        """Start the kernels; each call copies the structure, since several threads may call at once."""
        words = self._words.from_buffer_copy(self.structure)
        for word, operand in self._addresses:
            words[word] = operands[operand]
        for word, operand in self._numbers:
            (words[word],) = _WORD.unpack(_DOUBLE.pack(operands[operand]))
        words[self._reduced], words[self._starts] = memory
        if self._n_filled:
            device = self._kernels[0][0].device
            device.fill(memory[0], 0xFFFFFFFF, self._n_filled // 4, stream)
        for function, n_blocks, n_threads, together in self._kernels:
            launch = function.launch_together if together else function.launch
            launch(n_blocks, n_threads, stream, words)


_WORD, _DOUBLE = struct.Struct("Q"), struct.Struct("d")
