"""Routes: two ranks are linked exactly where a path for a transfer exists."""

from __future__ import annotations

import numpy as np
import pytest

from sley.ir.fabric import LinkKind
from sley.ir.topology import Builder


@pytest.mark.parametrize("kind", LinkKind)
@pytest.mark.parametrize("nodes", [1, 2])
def test_linked_ranks_have_a_way(kind: LinkKind, nodes: int) -> None:
    """A link of the network inside a node is none that a transfer inside the node takes."""
    builder = Builder("pair", np.arange(2) % nodes)
    builder.both(0, 1, kind, 25, 20)
    pair = builder.topology()
    ways = len(pair.paths([0], [1])[0])
    assert bool(pair.linked[0, 1]) == bool(ways) == (nodes == 2 or kind != LinkKind.NETWORK)
