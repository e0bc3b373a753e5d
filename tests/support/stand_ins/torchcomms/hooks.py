"""The hook by which torch.distributed records calls."""

from __future__ import annotations

from typing import Any


class FlightRecorderHook:
    def __init__(self, max_entries: int) -> None:
        pass

    def register_with_comm(self, comm: Any) -> None:
        pass
