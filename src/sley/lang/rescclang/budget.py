"""Budget: bounds on the work of a program's loops, so that every text is read in bounded time."""

from __future__ import annotations

from sley.errors import Place
from sley.errors.rescclang import L156
from sley.lang.rescclang.syntax import For, Transfer

MAX_TRANSFERS = 2**24
"""Bound on transfers: one between each two of 4,096 ranks. 1,024 GPUs need about two million."""

MAX_ITERATIONS = 2**27
"""Bound on the iterations of all loops together."""

MAX_WORK = 2**34
"""Bound on steps of evaluation, in units of one of many lanes: about twenty seconds."""

ALONE = 256
"""Weight of an iteration that runs alone, in Python."""

CALL = 4096
"""Weight of iterations that run at once, besides 1 for each: a call of NumPy."""


class Budget:
    """The work so far. Errors: L156, before any work beyond a bound."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._transfers = 0
        self._iterations = 0
        self._work = 0
        self.enforced = True

    def loop(self, loop: For, iterations: int, weight: int) -> None:
        """Adds a loop's iterations in all lanes. weight: of running a step in all of them."""
        if not self.enforced:
            return
        self._iterations += iterations
        self._work += weight * loop.body.cost
        if self._iterations > MAX_ITERATIONS:
            self._refuse(
                loop,
                f"at most {MAX_ITERATIONS} iterations of all loops together",
                f"{self._iterations} iterations with this loop over {loop.name[:60]}",
            )
        if self._work > MAX_WORK:
            self._refuse(
                loop,
                f"at most {MAX_WORK} steps of evaluation",
                f"{self._work} with {iterations} iterations of this loop over {loop.name[:60]}",
            )

    def transfers(self, transfer: Transfer, count: int) -> None:
        """Adds transfers."""
        if not self.enforced:
            return
        self._transfers += count
        if self._transfers > MAX_TRANSFERS:
            found = f"{self._transfers} with this one"
            self._refuse(transfer, f"at most {MAX_TRANSFERS} transfers", found)

    def _refuse(self, where: For | Transfer, expected: str, found: str) -> None:
        at = Place(self._file, where.line, where.column)
        raise L156.error(at=at, expected=expected, found=found)
