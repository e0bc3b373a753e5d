"""Output of nccl-tests as its versions print it, and damaged variants."""

from __future__ import annotations

import random

NEW = """\
# Collective test starting: {test}_perf
# nThread 1 nGpus 1 minBytes 4096 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 \
agg iters: 1 validation: 1 graph: 0
#
# Using devices
{devices}\
#
#                                                              out-of-place                       \
in-place          
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   \
algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  \
(GB/s)  (GB/s)       
{rows}\
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 100.5
#
"""  # noqa: W291 - as it is printed

OLD = """\
# nThread 1 nGpus 8 minBytes 4096 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 \
validation: 1
# Using devices
{devices}\
#       size         count      type   redop     time   algbw   busbw  error     time   algbw   \
busbw  error
#        (B)    (elements)                       (us)  (GB/s)  (GB/s)            (us)  (GB/s)  \
(GB/s)       
{rows}\
# Out of bounds values : 0 OK
"""  # noqa: W291 - as it is printed


def devices(nodes: int, gpus: int) -> str:
    """The lines of the ranks."""
    return "".join(
        f"#   Rank {rank:2} Pid {100 + rank} on node{rank // gpus} device {rank % gpus:2} [0x07] "
        "NVIDIA A100-SXM4-40GB\n"
        for rank in range(nodes * gpus)
    )


def row(size: int, time_us: float, factor: float, *, old: bool = False) -> str:
    """A row with equal times out of place and in place."""
    algbw = size / time_us / 1e3
    side = f"{time_us:.2f} {algbw:.2f} {algbw * factor:.2f} {'2e-07' if old else '0'}"
    middle = "float sum" if old else "float sum -1"
    return f"{size:12} {size // 4:12} {middle} {side} {side}\n"


def output(
    times: dict[int, float], *, old: bool = False, test: str = "all_reduce", gpus: int = 8
) -> str:
    """The output for the GPUs of a node, with these times by size."""
    factor = 2 * (gpus - 1) / gpus
    rows = "".join(row(size, time, factor, old=old) for size, time in times.items())
    return (OLD if old else NEW).format(test=test, devices=devices(1, gpus), rows=rows)


_WORDS = ("N/A", "-1", "nan", "1e999", "9" * 30, "", "0", "#", "time", "size", "\u0664", "1.5")


def mutated(rng: random.Random) -> str:
    """An output with one to three changes: of lines, of words in rows and columns, of
    characters."""
    times = {4096 << (4 * k): 20.0 * 3**k for k in range(rng.randrange(1, 5))}
    text = output(times, old=rng.random() < 0.5)
    if rng.random() < 0.3:
        text += output(times, test=rng.choice(["all_gather", "alltoall", "no"]))
    for _ in range(rng.randrange(1, 4)):
        lines = text.split("\n")
        at = rng.randrange(len(lines))
        words = lines[at].split()
        match rng.randrange(5):
            case 0:
                del lines[at]
            case 1:
                lines.insert(rng.randrange(len(lines)), lines[at])
            case 2 if words:
                words[rng.randrange(len(words))] = rng.choice(_WORDS)
                lines[at] = " ".join(words)
            case 3:
                lines[at] = lines[at][: rng.randrange(len(lines[at]) + 1)]
            case _:
                prefix = rng.choice(
                    ["[1,0]<stdout>:", "[0] ", "host:1:1 [0] NCCL INFO ", "0: ", "\0"]
                )
                lines[at] = prefix + lines[at].replace(" -1 ", rng.choice([" -1 ", " -1[0] ", " "]))
        text = "\n".join(lines)
    return text
