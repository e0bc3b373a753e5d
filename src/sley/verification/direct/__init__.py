"""Direct: messages that receivers pull from their senders' memory, and the holds that protect them
(docs/machine.md, protocol Direct).

`pull` chooses the messages and finds their holds; `staging` finds the messages that must use a slot
because their holds would make the plan hang.
"""

from sley.verification.direct.pull import Pulls, pulls

__all__ = ["Pulls", "pulls"]
