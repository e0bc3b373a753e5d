"""Chakra: plans as execution traces (MLCommons), which ASTRA-sim runs as custom collectives.

`traces` writes them, in the encoding of `wire`.
"""

from sley.formats.chakra.traces import FORMAT, write

__all__ = ["FORMAT", "write"]
