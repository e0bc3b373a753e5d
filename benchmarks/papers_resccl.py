"""ResCCL, sections 2, 3 and 5: its tables and figures, compared with simulations."""

from __future__ import annotations

import numpy as np
from common.tables import table
from papers_common import NEAR, POINTS, Row, nearness, peak, span
from papers_equations import estimate
from papers_levels import (
    AT,
    GAMMA,
    INSTANCES,
    NAMES,
    SIZES,
    SLOTS,
    STAGES,
    TOPOLOGIES,
    cluster,
    plan,
    run,
    simulator,
    speedup,
)

import sley
from sley.ir.fabric import LinkKind
from sley.ir.sizes import size_text

HALF = 0.5
"""The smallest share of the sizes at which the paper's winner must win to agree."""

# section, collective, other side, topology, the paper's range (0: no lower end given), sizes
_CLAIMS = (
    ("5.2, fig. 6a", "allgather", "rings", (2, 8), 1.281, 2.2, SIZES),
    ("5.2, fig. 6a", "allgather", "stage", (2, 8), 1.124, 1.6, SIZES),
    ("5.2, fig. 6b", "allgather", "rings", (4, 8), 1.382, 1.6, SIZES[1:]),
    ("5.2, fig. 6b", "allgather", "stage", (4, 8), 0, 1.4, SIZES),
    ("5.2, fig. 6c", "allreduce", "rings", (2, 8), 1.067, 2.5, SIZES),
    ("5.2, fig. 6c", "allreduce", "stage", (2, 8), 1.107, 2.5, SIZES),
    ("5.2, fig. 6d", "allreduce", "rings", (4, 8), 1.067, 2.5, SIZES),
    ("5.2, fig. 6d", "allreduce", "stage", (4, 8), 0.917, 2.5, SIZES),
    ("5.2, fig. 8", "allgather", "rings", (2, 4), 1.6, 2.3, SIZES),
    ("5.2, fig. 8", "allgather", "stage", (2, 4), 1.068, 1.231, SIZES),
    ("5.2, fig. 8", "allgather", "rings", (4, 4), 1.6, 2.3, SIZES),
    ("5.2, fig. 8", "allgather", "stage", (4, 4), 1.068, 1.231, SIZES),
    ("5.2, fig. 8", "allreduce", "rings", (2, 4), 0, 3.7, SIZES),
    ("5.2, fig. 8", "allreduce", "stage", (2, 4), 0, 2.4, SIZES),
    ("5.2, fig. 8", "allreduce", "rings", (4, 4), 0, 3.7, SIZES),
    ("5.2, fig. 8", "allreduce", "stage", (4, 4), 0, 2.4, SIZES),
)
_OVER = {
    "rings": "NCCL's rings",
    "stage": "stage level (MSCCL)",
    "stage4": "stage level, 4 channels",
}


def speedups() -> list[Row]:
    """The claims of figures 6 and 8."""
    rows = []
    for where, kind, against, topology, low, high, over in _CLAIMS:
        found = speedup(kind, against, "task", [topology], over)
        agrees = nearness(peak(found)[0], high)
        if agrees == "yes" and low and abs(min(found.values()) / low - 1) > NEAR:
            agrees = "in part"
        if np.mean([ratio > 1 for ratio in found.values()]) < HALF:
            agrees = "no"
        rows.append(
            Row(
                f"{where}, {topology[0]}x{topology[1]}",
                f"HM {NAMES[kind]}, task level over {_OVER[against]}",
                f"{low:.2f}x to {high:.2f}x" if low else f"up to {high:.2f}x",
                span(found),
                f"{size_text(over[0])} to {size_text(over[-1])}",
                agrees,
            )
        )
    return rows


def levels() -> str:
    """The table of the algorithm bandwidth of every level and topology, in GB/s."""
    rows = []
    for kind in STAGES:
        for where in TOPOLOGIES:
            for level in ("task", "stage", "stage4", "algorithm", "rings"):
                if level == "stage4" and kind == "allgather":
                    continue
                runs = [run(kind, level, where, size) for size in SIZES]
                rates = [f"{s / r.time_us / 1e3:.1f}" for s, r in zip(SIZES, runs, strict=True)]
                name, grid = f"HM {NAMES[kind]}", "{}x{}".format(*where)
                rows.append((name, grid, level, runs[0].blocks, *rates))
    return table(("algorithm", "topology", "level", "blocks", *map(size_text, SIZES)), rows)


def schedules() -> list[Row]:
    """The claims about HPDS over round robin, and the interpreter's loss."""
    rows = []
    for kind in STAGES:
        found = speedup(kind, "round-robin", "hpds", [(2, 4)])
        others = speedup(kind, "round-robin", "hpds", TOPOLOGIES[1:])
        rows.append(
            Row(
                "5.3, fig. 10b",
                f"HPDS over round robin, HM {NAMES[kind]}, 2x4",
                "always faster, up to 187 % (1.87x, or 2.87x if 187 % is the gain)",
                f"{span(found)}; on the other topologies up to {peak(others)[0]:.2f}x",
                "a block for each connection",
                nearness(peak(found)[0], 1.87),
            )
        )
        for where in TOPOLOGIES[:2]:
            loss: dict[int, float] = {}
            for size in SIZES:
                made, read = (
                    run(kind, "task", where, size, interpreter=flag).time_us
                    for flag in (False, True)
                )
                loss[size] = 100 * (1 - made / read)
            rows.append(
                Row(
                    "2.2, fig. 3",
                    "loss to the interpreter, HM {}, {}x{}".format(NAMES[kind], *where),
                    "17.1 % on average",
                    f"{np.mean(list(loss.values())):.1f} % on average, "
                    f"{min(loss.values()):.1f} % to {max(loss.values()):.1f} %",
                    "task level, 8M to 4G",
                    "input",
                )
            )
    return rows


_TABLE1 = {("allgather", 1): 76.7, ("allgather", 2): 67.5, ("allgather", 4): 66.8} | {
    ("allreduce", 1): 71.0,
    ("allreduce", 2): 61.8,
    ("allreduce", 4): 46.1,
}


def utilisation() -> str:
    """Table 1: mean utilisation of links at MSCCL's stage level, and its parts."""
    rows = []
    for (kind, nodes), paper in _TABLE1.items():
        found = run(kind, "stage", (nodes, 8), AT)
        agrees = "yes" if abs(100 * found.links - paper) <= POINTS else "no"
        between = f"{found.cards:.1%}" if nodes > 1 else "-"
        rows.append(
            (
                f"HM {NAMES[kind]}",
                nodes,
                f"{paper} %",
                f"{found.links:.1%}",
                f"{found.nvlinks:.1%}",
                between,
                f"{run(kind, 'task', (nodes, 8), AT).links:.1%}",
                f"**{agrees}**",
            )
        )
    head = ("algorithm", "servers", "paper", "sley", "only NVLink", "cards and network")
    return table((*head, "task level", "agrees"), rows)


_TABLE3: dict[tuple[str, str], tuple[tuple[float, ...], ...]] = {
    ("allreduce", "stage"): (
        (14, 30, 14, 30),
        (28.4, 33.8, 36.3, 36.3),
        (72.38, 99.5, 99.0, 99.0),
    ),
    ("allgather", "stage"): ((14, 30, 14, 30), (4.8, 17.7, 32.1, 33.9), (19.2, 99.1, 99.5, 99.0)),
    ("allreduce", "task"): ((8, 16, 8, 16), (4.3, 4.2, 14.3, 15.0), (19.6, 20.2, 22.5, 21.4)),
    ("allgather", "task"): ((8, 16, 8, 16), (1.7, 1.8, 6.9, 7.7), (5.6, 7.4, 21.4, 20.8)),
}
"""Blocks, and average and largest idle share in %, of MSCCL (stage) and ResCCL (task)."""


def idle_times() -> str:
    """Table 3: blocks and their idle times."""
    rows = []
    for (kind, level), (blocks, mean, most) in _TABLE3.items():
        for k, where in enumerate(TOPOLOGIES):
            one = run(kind, level, where, AT, instances=1)
            four = run(kind, level, where, AT)
            near = abs(100 * four.to_exit[0] - mean[k]) <= POINTS
            rows.append(
                (
                    f"HM {NAMES[kind]}",
                    "MSCCL" if level == "stage" else "ResCCL",
                    "{}x{}".format(*where),
                    f"{blocks[k]} / {one.blocks}",
                    f"{mean[k]} / {most[k]}",
                    *(
                        f"{100 * part[0]:.1f} / {100 * part[1]:.1f}"
                        for r in (one, four)
                        for part in (r.to_exit, r.to_end)
                    ),
                    "**blocks "
                    + ("yes" if blocks[k] == one.blocks else "no")
                    + ", idle "
                    + ("yes" if near else "no")
                    + "**",
                )
            )
    head = ("algorithm", "backend", "topology", "blocks: paper / sley", "idle in %: paper")
    ours = [
        f"{n} instance{'s' * (n > 1)}, to {end}"
        for n in (1, INSTANCES)
        for end in ("exit", "kernel's end")
    ]
    return table((*head, *ours, "agrees"), rows)


def implied_rates() -> str:
    """Figure 8 against table 3: the speed-up if busy blocks of both backends had one rate, and the
    ratio of their rates that the measured one implies. Both move the same bytes in n blocks that
    are busy for a share of the time, so time is bytes / (n * share * rate)."""
    rows = []
    for where, kind, against, topology, _, high, _ in _CLAIMS:
        if "fig. 8" not in where or against != "stage":
            continue
        k = TOPOLOGIES.index(topology)
        busy = []
        for level in ("task", "stage"):
            blocks, mean, _ = _TABLE3[kind, level]
            busy.append(blocks[k] * (1 - mean[k] / 100))
        same = busy[0] / busy[1]
        grid = "{}x{}".format(*topology)
        shown = (f"{one:.1f}" for one in busy)
        rows.append((f"HM {NAMES[kind]}", grid, *shown, f"{same:.2f}x", f"{high}x", high / same))
    head = ("algorithm", "topology", "busy blocks, ResCCL", "busy blocks, MSCCL")
    head = (*head, "speed-up at one rate", "figure 8, up to", "rate of ResCCL's over MSCCL's")
    return table(head, [(*row[:-1], f"{row[-1]:.1f}") for row in rows])


def card_loads() -> str:
    """The load of the cards that carry data, in each tenth of the time."""
    rows = []
    for kind, where, level in (
        ("allgather", (4, 4), "task"),
        ("allgather", (4, 4), "stage"),
        ("allreduce", (2, 8), "task"),
        ("allreduce", (2, 8), "stage"),
        ("allreduce", (2, 8), "stage4"),
    ):
        interpreter = level != "task"
        found = simulator(kind, level, where, INSTANCES, 0.0, interpreter)(AT)
        kinds = found.topology.links.kind
        used = (kinds == LinkKind.NETWORK) & (found.links.moved_bytes > 0)
        load = (found.links.load_GBps / found.topology.links.GBps)[:, used].mean(axis=1)
        tenths = [f"{100 * part.mean():.0f}" for part in np.array_split(load, 10)]
        rows.append((f"HM {NAMES[kind]}", "{}x{}".format(*where), level, *tenths))
    numbers = [str(tenth) for tenth in range(1, 11)]
    return table(("algorithm", "topology", "level", *numbers), rows)


def contention() -> str:
    """The speed-ups of the task level without and with contention, on nodes of 8 GPUs."""
    rows = []
    for kind in STAGES:
        for against in ("stage", "stage4", "rings"):
            if (kind, against) == ("allgather", "stage4"):
                continue
            for where in ((2, 8), (4, 8)):
                spans = [
                    span(speedup(kind, against, "task", [where], gamma=gamma))
                    for gamma in (0.0, GAMMA)
                ]
                rows.append((f"HM {NAMES[kind]}", _OVER[against], "{}x{}".format(*where), *spans))
    return table(("algorithm", "task level over", "topology", "0", f"{GAMMA}"), rows)


def blocks_on_a_card() -> str:
    """Figure 4: AllGather of two GPUs over one card, by the number of blocks."""
    rows = []
    program = sley.algorithms.ring_allgather(2, in_place=True)
    for count in (1, 2, 4, 8, 16):
        rates = []
        for gamma in (0.0, GAMMA):
            topology = sley.Topology.cluster(2, 1, 1, model=cluster(2, 8, gamma).model)
            made = sley.compile(program, topology=topology, instances=count, verify=False)
            found = sley.simulate(made, AT, slots=max(SLOTS, made.slots))
            rates.append(f"{found.busbw_GBps:.1f}")
        rows.append((count, *rates))
    return table(("blocks", "GB/s at 0", f"GB/s at {GAMMA}"), rows)


def equations() -> str:
    """Equations (3), (4) and (5) of the plan of each level, and its simulation."""
    rows = []
    for kind in STAGES:
        for level in ("algorithm", "stage4", "task"):
            made = plan(kind, level, 2, 8, 1)
            found = estimate(made, AT, cluster(2, 8))
            simulated = simulator(kind, level, (2, 8), 1, 0.0, False)(AT).time_us
            three = (found.algorithm.time_us, found.stage.time_us, found.task.time_us)
            own = three[("algorithm", "stage4", "task").index(level)]
            rows.append(
                (
                    f"HM {NAMES[kind]}",
                    level,
                    *(f"{us / 1e3:.2f}" for us in three),
                    f"{simulated / 1e3:.2f}",
                    f"{own / simulated - 1:+.0%}",
                )
            )
    head = ("algorithm", "plan of level", "(3) T_A", "(4) T_S", "(5) T_P")
    return table((*head, "simulated", "its own equation"), rows)
