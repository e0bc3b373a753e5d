"""Files of synthesisers in miniature, as their tools write them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

Flow = tuple[int, int, int, int, int, str]
"""Chunk, source, from, to, epoch, and "" or " via switches N"."""


def teccl_allgather(flows: Sequence[Flow], epochs: int, **changes: object) -> str:
    """The text of a TE-CCL AllGather. changes: replaced keys."""
    texts = [
        f"Chunk {c} from {s} traveled over {i}->{j} in epoch {k}{via}"
        for c, s, i, j, k, via in flows
    ]
    values: dict[str, Any] = {
        "1-Epoch_Duration": 1e-6,
        "2-Expected_Epoch_Duration": 1e-6,
        "3-Epochs_Required": epochs,
        "4-Collective_Finish_Time": epochs * 1e-6,
        "5-Algo_Bandwidth": 1.0,
        "7-Flows": texts,
        "8-Chunk paths": {},
    }
    return json.dumps({**values, **changes}, indent=2)


def ring_flows(ranks: int, chunks: int = 1) -> list[Flow]:
    """The flows of a ring AllGather whose links take one epoch."""
    return [
        (chunk, source, (source + step) % ranks, (source + step + 1) % ranks, step, "")
        for step in range(ranks - 1)
        for source in range(ranks)
        for chunk in range(chunks)
    ]


def teccl_alltoall(paths: Mapping[str, Sequence[Any]], epochs: int) -> str:
    """The text of a TE-CCL AllToAll with these paths by their demands."""
    flows = {
        f"Chunk {demand.split()[5]} from {demand.split()[7]} traveled over {text}"
        for demand, ways in paths.items()
        for way in ways
        for _, text in way
    }
    values = {
        "1-Epoch_Duration": 1e-6,
        "3-Epochs_Required": epochs,
        "4-Collective_Finish_Time": epochs * 1e-6,
        "5-Algo_Bandwidth": 1.0,
        "6-Flows": sorted(flows),
        "7-chunk paths": paths,
    }
    return json.dumps(values, indent=2)


def halves(ranks: int) -> dict[str, list[Any]]:
    """The paths of an AllToAll: half of each chunk directly, half through the rank after the
    source, or the one after that."""
    found: dict[str, list[Any]] = {}
    for s in range(ranks):
        for d in range(ranks):
            if s == d:
                continue
            via = next(r % ranks for r in (s + 1, s + 2) if r % ranks not in (s, d))
            hop = "{}->{} with volume 0.5 in epoch {}"
            ways = [
                [[0, hop.format(s, d, 0)]],
                [[0, hop.format(s, via, 0)], [1, hop.format(via, d, 1)]],
            ]
            found[f"Demand at {d} for chunk {d} from {s} met by epoch 1"] = ways
    return found


def forest(ranks: int, chunks: int = 1, trees: int = 1) -> str:
    """ForestColl's text of trees around a switch: a star, and chains for further trees."""
    name = "(0, 'GPU', {})".format
    lines = [f'<Algo nchunkspernode="{chunks * trees}">']
    for root in range(ranks):
        others = [(root + step) % ranks for step in range(1, ranks)]
        for index in range(trees):
            chain = [root, *others]
            edges = [(root, other) for other in others] if index == 0 else pairwise(chain)
            height = 1 if index == 0 else ranks - 1
            head = f'root="{name(root)}" index="{index}" nchunks="{chunks}" height="{height}"'
            lines.append(f"  <tree {head}>")
            for src, dst in edges:
                path = f"{name(src)},(0, 'NVSwitch', 0),{name(dst)}"
                lines.append(f'    <send src="{name(src)}" dst="{name(dst)}" path="{path}"/>')
            lines.append("  </tree>")
    return "\n".join([*lines, "</Algo>"])


def numbered_forest(ranks: int) -> str:
    """The text of a star's trees as the fork that reads adjacency tables writes them; the switch
    comes after the GPUs."""
    text = forest(ranks).replace("(0, 'NVSwitch', 0)", str(ranks))
    return re.sub(r"\(0, 'GPU', ([0-9]+)\)", r"\1", text)


def taccl_schedule(name: str, ranks: int, steps: Sequence[Sequence[Sequence[Any]]]) -> str:
    """The text of a TACCL schedule."""
    values = {
        "sccl_type": "algorithm",
        "name": f"{name}-topo",
        "instance": {"sccl_type": "instance", "steps": len(steps)},
        "input_map": {},
        "output_map": {},
        "steps": [{"sccl_type": "step", "rounds": 1, "sends": sends} for sends in steps],
        "collective": {"sccl_type": "collective", "name": name, "nodes": ranks, "chunks": []},
        "topology": {"sccl_type": "topology", "name": "topo"},
    }
    return json.dumps(values)
