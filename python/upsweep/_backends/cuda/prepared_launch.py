"""A launch of kernels that share one structure of arguments, prepared once and started on any addresses."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any

__all__ = ["KernelLaunch"]


class KernelLaunch:
    """Kernels that take one structure of arguments, complete but for the addresses and numbers of a call.

    The structure consists of fields of 8 bytes. Two of them, `reduced` and `starts`, are addresses of temporary
    memory of the call.
    """

    def __init__(self, structure: ctypes.Structure) -> None:
        self.structure = structure
        n_words = ctypes.sizeof(structure) // 8
        self._words: Any = ctypes.c_uint64 * n_words
        self._addresses: list[tuple[int, int]] = []
        self._numbers: list[tuple[int, int]] = []
        self._kernels: list[tuple[Any, int, int, bool]] = []
        self._n_filled = 0
        kind: Any = type(structure)
        self._reduced, self._starts = kind.reduced.offset // 8, kind.starts.offset // 8

    def read_address(self, target: Any, operand: int) -> None:
        """Store the address of an operand in `target`, a part of the structure that begins with an address."""
        word = (ctypes.addressof(target) - ctypes.addressof(self.structure)) // 8
        self._addresses.append((word, operand))

    def read_number(self, word: int, operand: int) -> None:
        """Store an operand that is a number as a double, `word` words from the beginning of the structure."""
        self._numbers.append((word, operand))

    def fill(self, n_bytes: int) -> None:
        """Fill `n_bytes` of the temporary memory with ones before the first kernel."""
        self._n_filled = n_bytes

    def add(self, function: Any, n_blocks: int, n_threads: int, *, together: bool = False) -> None:
        """Add a kernel after the others; `together`: a cooperative launch, whose blocks wait for each other."""
        self._kernels.append((function, n_blocks, n_threads, together))

    def start(self, operands: Sequence[Any], memory: tuple[int, int], stream: int) -> None:
        """Launch the kernels. Each call copies the structure, since several threads may call at once."""
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
