"""Verifier: proves a plan correct before it runs.

It reads only the plan, never the program or the compiler's intermediate results. `verifier` runs
the checks: `structure`, `hangs` (with `meetings` for instruction order), `races` and `result`.
"""

from sley.verification.verifier import Proof, verify

__all__ = ["Proof", "verify"]
