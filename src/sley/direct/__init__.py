"""Direct: messages that receivers pull from their senders' memory, and the holds that this needs
(docs/machine.md, protocol Direct)."""

from sley.direct.pull import Pulls, pulls

__all__ = ["Pulls", "pulls"]
