"""Code generation: kernels of plans, as straight-line code or for an interpreter, over shared
primitives (ResCCL 4.5, MSCCLang 6).

`source` makes the whole text of the kernel of sends and receives, and of a plan's kernels from
`operands`, a plan's instructions as arguments of the primitives (with the waits of
`verification.flagged`, and the runs of `verification.runs`); `switches` finds the groups whose
messages a switch can move, `averages` where AVG divides. `kinds` groups blocks that run the same
code, `text` writes that code, and `formulas` the numbers in it. `prebuilt` finds machine code that
was compiled ahead.
"""

from sley.engine.kernels.source import (
    KERNELS,
    THREADS,
    Engine,
    Kernels,
    Platform,
    Variant,
    messages_source,
    refuse_varying_plan,
)

__all__ = [
    "KERNELS",
    "THREADS",
    "Engine",
    "Kernels",
    "Platform",
    "Variant",
    "messages_source",
    "refuse_varying_plan",
]
