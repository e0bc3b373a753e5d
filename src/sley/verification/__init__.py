"""Verifier: proves a plan correct before it runs.

It reads only the plan, never the program or the compiler's intermediate results.

verifier.py       the checks of a plan, in order: structure, hangs (with meetings for plans in
                  instruction order, and reach), races, result (with values, as fingerprints)
one_sided.py      the checks of a one-sided plan, by an abstract run of its calls (calls.py) with
                  what agents know of one another (clocks), cells (memory) and exact contents for
                  the report of a wrong result (history)
direct/           which messages receivers may pull from their senders' memory
"""

from sley.verification.verifier import Proof, verify

__all__ = ["Proof", "verify"]
