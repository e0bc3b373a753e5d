"""Mutants of MSCCL XML files: files that sley writes, with one to three random changes."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import cache

import sley
from sley.algorithms import build
from sley.formats import msccl_xml

TARGETS = ("executor", "rccl", "msccl")

BASES: tuple[tuple[str, dict[str, object], dict[str, object]], ...] = (
    ("ring-allreduce", {"ranks": 3, "in_place": True}, {}),
    ("ring-allreduce", {"ranks": 2}, {"max_bytes": 1 << 20}),
    ("all-pairs-allreduce", {"ranks": 3, "in_place": True}, {"protocol": "ll"}),
    ("all-pairs-allreduce", {"ranks": 4}, {"max_bytes": 1 << 22}),
    ("recursive-halving-doubling-allreduce", {"ranks": 4, "in_place": True}, {}),
    ("hierarchical-allreduce", {"nodes": 2, "gpus": 2, "in_place": True}, {"max_bytes": 4096}),
    ("ring-allgather", {"ranks": 3}, {"protocol": "ll128"}),
    ("all-pairs-allgather", {"ranks": 3, "in_place": True}, {}),
    ("ring-reducescatter", {"ranks": 3, "in_place": True}, {"instances": 2}),
    ("all-pairs-reducescatter", {"ranks": 3}, {"protocol": "ll", "max_bytes": 1 << 16}),
    ("two-step-alltoall", {"nodes": 2, "gpus": 2}, {}),
    ("all-pairs-alltoall", {"ranks": 3}, {}),
    ("binomial-broadcast", {"ranks": 4}, {"protocol": "ll"}),
    ("flat-reduce", {"ranks": 3, "in_place": True}, {"min_bytes": 1024}),
)


def _by_hand(
    ranks: int, chunks: int, coll: str, proto: str, most: int, blocks: list[list[str]]
) -> str:
    """A file whose ranks all have the same blocks, each with its peers and steps; in these, P is
    the next rank and Q the one before."""
    own_chunks = chunks // ranks if coll == "allgather" else chunks
    gpus = ""
    for rank in range(ranks):
        p, q = (rank + 1) % ranks, (rank - 1) % ranks
        gpus += f'  <gpu id="{rank}" i_chunks="{own_chunks}" o_chunks="{chunks}" s_chunks="8">\n'
        for number, block in enumerate(blocks):
            send, recv, *body = (text.replace("P", str(p)).replace("Q", str(q)) for text in block)
            rows = [row.format(own=rank * own_chunks, other=q * own_chunks) for row in body]
            gpus += f'    <tb id="{number}" send="{send}" recv="{recv}" chan="0">\n'
            gpus += "".join(_row(k, row) for k, row in enumerate(rows)) + "    </tb>\n"
        gpus += "  </gpu>\n"
    return (
        f'<algo name="x" proto="{proto}" nchannels="1" nchunksperloop="{chunks}" ngpus="{ranks}" '
        f'coll="{coll}" inplace="0" outofplace="1" minBytes="0" maxBytes="{most}">\n{gpus}</algo>\n'
    )


def _row(s: int, text: str) -> str:
    """A <step> from "type source target count wait flag"."""
    kind, source, target, count, wait, flag = text.split()
    depid, deps = wait.split(",")
    return (
        f'      <step s="{s}" type="{kind}" srcbuf="{source[0]}" srcoff="{source[1:]}" '
        f'dstbuf="{target[0]}" dstoff="{target[1:]}" cnt="{count}" depid="{depid}" deps="{deps}" '
        f'hasdep="{flag}"/>\n'
    )


_HAND = (
    # Reductions of several counts into one place.
    (3, 2, "allreduce", "LL", 65536, [
        ["P", "Q", "s i0 i0 2 -1,-1 0", "r s0 s0 2 -1,-1 1"],
        ["Q", "P", "s i0 i0 2 -1,-1 0", "r s2 s2 2 -1,-1 1"],
        ["-1", "-1", "nop i-1 o-1 0 0,1 0", "cpy i0 o0 2 1,1 0", "re s0 o0 1 -1,-1 1",
         "re s2 o0 2 -1,-1 0", "re s1 o1 1 -1,-1 0"],
    ]),
    # Scratch that could be the input.
    (2, 1, "allreduce", "Simple", 1 << 30, [
        ["P", "P", "s i0 i0 1 -1,-1 0", "cpy i0 o0 1 -1,-1 0", "r s0 s0 1 -1,-1 0",
         "re s0 o0 1 -1,-1 0"],
    ]),
    # Both ranks send before they receive.
    (2, 16, "allgather", "Simple", 1 << 21, [
        ["P", "P", "cpy i0 o{own} 8 -1,-1 0", "s i0 i0 8 -1,-1 0", "r o{other} o{other} 8 -1,-1 0"],
    ]),
)  # fmt: skip

FILES = len(BASES) + len(_HAND)
"""The number of files that are changed: those that sley writes, and some by hand."""


@cache
def base(number: int, target: str) -> str:
    """One of the files, as sley writes it for a target, or by hand."""
    if number >= len(BASES):
        return _by_hand(*_HAND[number - len(BASES)])
    name, parameters, options = BASES[number]
    settings = {k: v for k, v in options.items() if k.endswith("_bytes")}
    rest = {k: v for k, v in options.items() if not k.endswith("_bytes")}
    plan = sley.compile(build(name, **parameters), per_chunk=True, **rest)
    return msccl_xml.write(plan, target, **settings)


Change = Callable[[str, random.Random], str]


def _pick(text: str, pattern: str, rng: random.Random) -> re.Match[str] | None:
    found = list(re.finditer(pattern, text))
    return rng.choice(found) if found else None


def _swap(text: str, match: re.Match[str] | None, new: Callable[[re.Match[str]], str]) -> str:
    if match is None:
        return text
    return text[: match.start()] + new(match) + text[match.end() :]


def change_number(text: str, rng: random.Random) -> str:
    """Another number in some attribute."""

    def new(match: re.Match[str]) -> str:
        old = int(match[2])
        value = rng.choice([old + 1, old - 1, 0, 1, 2, -1, rng.randint(0, 6), 64, 1 << 20])
        return f'{match[1]}="{value}"'

    return _swap(text, _pick(text, r'(\w+)="(-?\d+)"', rng), new)


def change_wait(text: str, rng: random.Random) -> str:
    """Another block and step in a wait."""

    def new(match: re.Match[str]) -> str:
        wait = rng.choice([(-1, -1), (rng.randint(0, 5), rng.randint(0, 5))])
        return f'depid="{wait[0]}" deps="{wait[1]}"'

    waits = r'depid="\d+" deps="\d+"' if rng.random() < 0.6 else r'depid="-?\d+" deps="-?\d+"'
    return _swap(text, _pick(text, waits, rng), new)


def change_step_of_wait(text: str, rng: random.Random) -> str:
    """A wait for an earlier or later step of the same block."""

    def new(match: re.Match[str]) -> str:
        return f'{match[1]} deps="{max(int(match[2]) + rng.choice([-2, -1, 1, 2]), 0)}"'

    return _swap(text, _pick(text, r'(depid="\d+") deps="(\d+)"', rng), new)


def flip_flag(text: str, rng: random.Random) -> str:
    old = rng.choice("01")
    match = _pick(text, f'hasdep="{old}"', rng)
    return _swap(text, match, lambda _: f'hasdep="{1 - int(old)}"')


def move_flag(text: str, rng: random.Random) -> str:
    """An announcement by the step before or after the one that has it."""
    steps = list(re.finditer(r"<step[^>]*>", text))
    flagged = [k for k, step in enumerate(steps) if 'hasdep="1"' in step[0]]
    if not flagged:
        return text
    k = rng.choice(flagged)
    other = k + rng.choice([-1, 1])
    if not 0 <= other < len(steps):
        return text
    for number, flag in sorted([(k, 0), (other, 1)], reverse=True):
        step = steps[number]
        new = re.sub(r'hasdep="\d"', f'hasdep="{flag}"', step[0])
        text = text[: step.start()] + new + text[step.end() :]
    return text


def change_word(text: str, rng: random.Random) -> str:
    """Another operation or buffer."""
    kinds = ["s", "r", "cpy", "re", "nop", "rrc", "rcs", "rrs", "rrcs"]
    if rng.random() < 0.5:
        match = _pick(text, r'type="\w+"', rng)
        return _swap(text, match, lambda _: f'type="{rng.choice(kinds)}"')
    match = _pick(text, r'(src|dst)buf="\w"', rng)
    return _swap(text, match, lambda m: f'{m[1]}buf="{rng.choice("ios")}"')


def _numbered(body: str) -> str:
    count = iter(range(1 << 20))
    return re.sub(r' s="\d+"', lambda _: f' s="{next(count)}"', body)


def _edit_block(text: str, rng: random.Random, edit: Callable[[list[str]], None]) -> str:
    """Edits the steps of a block, and numbers them again."""
    match = _pick(text, r"(?s)(<tb[^>]*>\n)(.*?)( *</tb>)", rng)
    if match is None:
        return text
    steps = match[2].splitlines(keepends=True)
    edit(steps)
    body = _numbered("".join(steps))
    return text[: match.start()] + match[1] + body + match[3] + text[match.end() :]


def insert_nop(text: str, rng: random.Random) -> str:
    def edit(steps: list[str]) -> None:
        wait = rng.choice([(-1, -1), (rng.randint(0, 3), rng.randint(0, 3))])
        flag = rng.choice([0, 0, 1])
        steps.insert(
            rng.randint(0, len(steps)),
            '      <step s="0" type="nop" srcbuf="i" srcoff="-1" dstbuf="o" dstoff="-1" cnt="0" '
            f'depid="{wait[0]}" deps="{wait[1]}" hasdep="{flag}"/>\n',
        )

    return _edit_block(text, rng, edit)


def drop_step(text: str, rng: random.Random) -> str:
    return _edit_block(
        text, rng, lambda steps: steps.pop(rng.randrange(len(steps))) if steps else None
    )


def repeat_step(text: str, rng: random.Random) -> str:
    def edit(steps: list[str]) -> None:
        if steps:
            steps.insert(rng.randint(0, len(steps)), rng.choice(steps))

    return _edit_block(text, rng, edit)


def swap_steps(text: str, rng: random.Random) -> str:
    def edit(steps: list[str]) -> None:
        if len(steps) > 1:
            k = rng.randrange(len(steps) - 1)
            steps[k], steps[k + 1] = steps[k + 1], steps[k]

    return _edit_block(text, rng, edit)


def drop_reduction_flag(text: str, rng: random.Random) -> str:
    """A reduction that no longer ends a run."""
    match = _pick(text, r'type="re"([^>]*)hasdep="1"', rng)
    return _swap(text, match, lambda m: f'type="re"{m[1]}hasdep="0"')


def split_reduction(text: str, rng: random.Random) -> str:
    """A reduction of several chunks as several, or with another one into the same place."""

    def edit(steps: list[str]) -> None:
        reductions = [k for k, step in enumerate(steps) if 'type="re"' in step]
        if not reductions:
            return
        k = rng.choice(reductions)
        again = re.sub(r'depid="-?\d+" deps="-?\d+"', 'depid="-1" deps="-1"', steps[k])
        again = re.sub(r'srcoff="\d+"', f'srcoff="{rng.randint(0, 3)}"', again)
        again = re.sub(r'cnt="\d+"', f'cnt="{rng.randint(1, 2)}"', again)
        steps.insert(k + 1, again)

    return _edit_block(text, rng, edit)


def change_header(text: str, rng: random.Random) -> str:
    """Another attribute of the whole file."""
    name, values = rng.choice(
        [
            ("inplace", ["0", "1"]),
            ("outofplace", ["0", "1"]),
            ("minBytes", ["0", "1024", "1048576"]),
            ("maxBytes", ["0", "4096", "1048576", "67108864"]),
            ("proto", ["Simple", "LL", "LL128"]),
            ("nchannels", ["1", "2", "33"]),
            ("coll", ["allreduce", "allgather", "reduce_scatter", "reducescatter", "alltoall"]),
        ]
    )
    return re.sub(f' {name}="[^"]*"', f' {name}="{rng.choice(values)}"', text, count=1)


def both_places(text: str, rng: random.Random) -> str:
    return re.sub(r'(inplace|outofplace)="0"', r'\1="1"', text, count=1)


def more_bytes(text: str, rng: random.Random) -> str:
    """Calls of greater sizes."""
    return re.sub(r'maxBytes="\d+"', f'maxBytes="{1 << rng.randint(16, 40)}"', text, count=1)


def add_peer(text: str, rng: random.Random) -> str:
    """A peer of a block that had none."""
    match = _pick(text, r'(send|recv)="-1"', rng)
    return _swap(text, match, lambda m: f'{m[1]}="{rng.randint(0, 2)}"')


def merge_reductions(text: str, rng: random.Random) -> str:
    """A reduction next to another one, without what stood between them or ended the run."""

    def edit(steps: list[str]) -> None:
        found = [k for k, step in enumerate(steps) if 'type="re"' in step]
        if len(found) > 1:
            k = rng.randrange(len(found) - 1)
            steps.insert(found[k] + 1, steps.pop(found[k + 1]))
            if rng.random() < 0.7:
                steps[found[k]] = steps[found[k]].replace('hasdep="1"', 'hasdep="0"')

    return _edit_block(text, rng, edit)


def use_input(text: str, rng: random.Random) -> str:
    """The input in the place of scratch."""
    return text.replace('buf="s"', 'buf="i"')


def insert_nop_and_count(text: str, rng: random.Random) -> str:
    """A nop before a step that announces itself; waits for it name its new number."""
    gpu = _pick(text, r"(?s)<gpu.*?</gpu>", rng)
    if gpu is None:
        return text
    blocks = re.findall(r"(?s)<tb.*?</tb>", gpu[0])
    number = rng.randrange(len(blocks)) if blocks else 0
    if not blocks or 'hasdep="1"' not in blocks[number]:
        return text
    steps = re.findall(r" *<step[^>]*/>\n", blocks[number])
    flagged = [k for k, step in enumerate(steps) if 'hasdep="1"' in step]
    if not flagged:
        return text
    at = rng.randint(0, rng.choice(flagged))
    wait = rng.choice([(-1, -1), (-1, -1), (rng.randint(0, 3), rng.randint(0, 3))])
    nop = (
        '      <step s="0" type="nop" srcbuf="i" srcoff="-1" dstbuf="o" dstoff="-1" cnt="0" '
        f'depid="{wait[0]}" deps="{wait[1]}" hasdep="0"/>\n'
    )
    body = _numbered("".join([*steps[:at], nop, *steps[at:]]))
    new = gpu[0].replace("".join(steps), body, 1)
    new = re.sub(
        f'depid="{number}" deps="(\\d+)"',
        lambda m: f'depid="{number}" deps="{int(m[1]) + (int(m[1]) >= at)}"',
        new,
    )
    return text[: gpu.start()] + new + text[gpu.end() :]


def change_text(text: str, rng: random.Random) -> str:
    """Text that means the same in XML, or nearly."""
    return rng.choice(
        [
            lambda: '<?xml version="1.0"?>\n' + text,
            lambda: _swap(text, _pick(text, r' (\w+)="', rng), lambda m: f'  {m[1]}="'),
            lambda: _swap(text, _pick(text, r' (\w+)="', rng), lambda m: f'\t{m[1]}="'),
            lambda: _swap(text, _pick(text, r' (\w+)="', rng), lambda m: f'\n{m[1]}="'),
            lambda: _swap(text, _pick(text, r'"(\d+)"', rng), lambda m: f"'{m[1]}'"),
            lambda: _swap(text, _pick(text, r'"(\d+)"', rng), lambda m: f'"0{m[1]}"'),
            lambda: _swap(text, _pick(text, r'"(\d)"', rng), lambda m: f'"&#{48 + int(m[1])};"'),
            lambda: _swap(text, _pick(text, r"/>", rng), lambda _: " />"),
            lambda: _swap(text, _pick(text, r"/>", rng), lambda _: "></step>"),
            lambda: _swap(text, _pick(text, r"\n", rng), lambda _: "\n<!-- a b -->\n"),
            lambda: _swap(text, _pick(text, r"\n", rng), lambda _: "\n<!--a=b-->\n"),
            lambda: _swap(text, _pick(text, r"\n", rng), lambda _: "\r\n"),
            lambda: _swap(text, _pick(text, r"\n", rng), lambda _: "\n\t"),
            lambda: _swap(text, _pick(text, r' (\w+)="\d+"', rng), lambda _: ""),
            lambda: _swap(text, _pick(text, r"(?s)<tb.*?</tb>", rng), lambda _: ""),
        ]
    )()


CHANGES: tuple[Change, ...] = (
    change_number, change_number, change_wait, change_step_of_wait, flip_flag, flip_flag, move_flag,
    change_word, insert_nop, insert_nop, drop_step, repeat_step, swap_steps, drop_reduction_flag,
    split_reduction, change_header, change_text, both_places, more_bytes, add_peer,
    merge_reductions, use_input, insert_nop_and_count, insert_nop_and_count,
)  # fmt: skip


def mutant(rng: random.Random) -> tuple[str, str]:
    """A changed file and its target."""
    target = rng.choice(TARGETS)
    text = base(rng.randrange(FILES), target)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        text = rng.choice(CHANGES)(text, rng)
    return text, target
