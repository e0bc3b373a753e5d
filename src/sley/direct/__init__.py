"""Direct: what the receivers of a plan pull from their senders' memory, and what that holds back
(docs/machine.md, protocol Direct)."""

from sley.direct.pull import Pulls, pulls

__all__ = ["Pulls", "pulls"]
