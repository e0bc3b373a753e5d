"""Verifier: proves a plan correct before it runs.

It reads only the plan, never the program or the compiler's intermediate results.

verifier.py       the checks of a plan, in order: its structure, hangs, races, result (with values,
                  as fingerprints, and reach)
one_sided/        the checks of a one-sided plan, by an abstract run of its calls
direct/           which messages receivers may pull from their senders' memory
flagged.py        the additional waits of plans with LL and LL128
certificate.py    witnesses of a proof, for those who don't trust this room
order.py          the trees in which a plan adds up
runs.py           which instructions kernels can execute as one
scales.py         where inputs can be multiplied by a factor each once
"""

from sley.verification.order import SumOrder
from sley.verification.verifier import Proof, verify

__all__ = ["Proof", "SumOrder", "verify"]
