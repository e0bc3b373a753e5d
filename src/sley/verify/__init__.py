"""Verifier: proves a plan correct before it runs.

It reads only the plan, never the program or the compiler's intermediate results.
"""

from sley.verify.verifier import Proof, verify

__all__ = ["Proof", "verify"]
