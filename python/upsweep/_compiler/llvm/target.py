"""The instruction sets that code is generated for, as LLVM names them.

They are those of the compiled modules, level by level, and never "the host's": code of a level is the same on
every processor that runs it, and ``UPSWEEP_CPU_ISA`` limits it as it limits the compiled modules. The keys of the
cache on disk contain the target.
"""

from __future__ import annotations

from dataclasses import dataclass

BITS = {"float32": 32, "float64": 64}


@dataclass(frozen=True, slots=True)
class Target:
    """One instruction set, as LLVM names it, and what the generated code may count on."""

    level: str
    cpu: str  # "" is LLVM's baseline of the architecture
    features: str
    vector_bytes: int
    fma: bool
    avx512: bool = False

    def lanes(self, dtype: str) -> int:
        """How many numbers of a type a vector holds."""
        return 8 * self.vector_bytes // BITS[dtype]


# LLVM's own preference for 256 bits on x86-64-v4 would halve the rate of every kernel.
TARGETS = {
    target.level: target
    for target in (
        Target("x86_64_v2", "x86-64-v2", "", 16, fma=False),
        Target("x86_64_v3", "x86-64-v3", "", 32, fma=True),
        Target("x86_64_v4", "x86-64-v4", "-prefer-256-bit", 64, fma=True, avx512=True),
        Target("neon", "generic", "", 16, fma=True),
        Target("generic", "", "", 16, fma=False),
    )
}
