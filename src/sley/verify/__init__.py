"""Verifier: whether a plan is right, proven before anything runs it.

It looks at the plan alone, never at the program or at what the compiler thought.
"""

from sley.verify.verifier import Proof, verify

__all__ = ["Proof", "verify"]
