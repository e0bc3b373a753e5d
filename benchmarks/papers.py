"""Papers: compares the papers' results with simulations: the page docs/papers.md.

    python benchmarks/papers.py [docs/papers.md]

Writes the page to the file, or prints it. Nothing is fitted to the papers: every row uses sley's
topologies with their own cost models, with no changes other than those on the page.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import papers_levels as levels
import papers_mscclang
import papers_resccl as resccl
from common import tables
from papers_common import EVEN, NEAR, POINTS, claims

import sley
from sley.ir.sizes import size_text

TEXT = Path(__file__).with_name("papers.md.in")


def parameters() -> str:
    """The parameters in which the clusters' cost models differ."""
    models = {
        "ndv4": sley.topologies.ndv4().model,
        "dgx2": sley.topologies.dgx2(nodes=1).model,
        "resccl": levels.cluster(2, 8).model,
    }
    return tables.parameters(models)


def page() -> str:
    """The page."""
    return TEXT.read_text().format(
        near=f"{NEAR:.0%}",
        even=f"{EVEN:.0%}",
        points=f"{POINTS:.0f}",
        at=size_text(levels.AT),
        chunk=size_text(levels.CHUNK),
        slots=levels.SLOTS,
        instances=levels.INSTANCES,
        channels=levels.CHANNELS,
        gamma=levels.GAMMA,
        mscclang=claims(papers_mscclang.rows()),
        speedups=claims(resccl.speedups()),
        levels=resccl.levels(),
        card_loads=resccl.card_loads(),
        schedules=claims(resccl.schedules()),
        utilisation=resccl.utilisation(),
        idle=resccl.idle_times(),
        implied_rates=resccl.implied_rates(),
        blocks_on_a_card=resccl.blocks_on_a_card(),
        contention=resccl.contention(),
        equations=resccl.equations(),
        parameters=parameters(),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("output", nargs="?", type=Path, help="the file to write [standard output]")
    output = parser.parse_args().output
    text = page()
    if output is None:
        print(text, end="")
    else:
        output.write_text(text)


if __name__ == "__main__":
    main()
