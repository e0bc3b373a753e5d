"""Texts of ResCCLang: the paper's, invalid ones with the expected refusals, random ones."""

from __future__ import annotations

from hypothesis import strategies as st

HEAD = 'ResCCLAlgo(nRanks=4, OpType="Allgather"):\n'

FIGURE_16 = """\
ResCCLAlgo(nRanks=32, nChannels=4, nWarps=16, AlgoName="HM", OpType="Allreduce", GPUPerNode=8, \
NICPerNode=8):
    nNodes = 4
    nGpusperNode = 8
    nChunks = nNodes * nGpusperNode
    for n in range(0, nNodes):
        for r in range(0, nGpusperNode):
            for baseStep in range(0, nNodes):
                for offset in range(0, nGpusperNode - 1):
                    srcRank = nGpusperNode * n + r
                    dstRank = (r + offset + 1) % nGpusperNode + nGpusperNode * n
                    step = baseStep * (nGpusperNode - 1) + offset
                    transfer(srcRank, dstRank, step, (dstRank + baseStep * nGpusperNode) % nChunks, rrc)
    for n in range(0, nNodes):
        for r in range(0, nGpusperNode):
            for baseStep in range(0, nNodes - 1):
                srcRank = nGpusperNode * n + r
                dstRank = (srcRank + nGpusperNode) % nChunks
                step = nNodes * (nGpusperNode - 1) + baseStep
                transfer(srcRank, dstRank, step, (srcRank + nChunks - baseStep * nGpusperNode) % nChunks, rrc)
    for n in range(0, nNodes):
        for r in range(0, nGpusperNode):
            for baseStep in range(0, nNodes - 1):
                srcRank = nGpusperNode * n + r
                dstRank = (srcRank + nGpusperNode) % nChunks
                step = nNodes * (nGpusperNode - 1) + nNodes - 1 + baseStep
                chunkId = (srcRank + nChunks - (baseStep + nNodes - 1) * nGpusperNode) % nChunks
                transfer(srcRank, dstRank, step, chunkId, recv)
    for n in range(0, nNodes):
        for r in range(0, nGpusperNode):
            for baseStep in range(0, nNodes):
                for offset in range(0, nGpusperNode - 1):
                    srcRank = nGpusperNode * n + r
                    dstRank = (r + offset + 1) % nGpusperNode + nGpusperNode * n
                    step = nNodes * (nGpusperNode - 1) + 2 * nNodes - 2 + baseStep
                    transfer(srcRank, dstRank, step, (srcRank + baseStep * nGpusperNode) % nChunks, recv)
"""  # noqa: E501
"""HM AllReduce (ResCCL, figure 16) as printed, with lines 9 to 12 corrected by appendix A."""

ANY_SIZE = FIGURE_16.replace("nNodes = 4", "nNodes = nRanks / GPUPerNode").replace(
    "nGpusperNode = 8", "nGpusperNode = GPUPerNode"
)
"""The same algorithm for any cluster."""


def _body(*lines: str) -> str:
    return HEAD + "".join(f"    {line}\n" for line in lines)


def _head(parameters: str) -> str:
    return f"ResCCLAlgo({parameters}):\n    x = 1\n"


AG = 'OpType="Allgather"'

BAD: dict[str, tuple[str, str, int, int]] = {
    # by mistake: text, code, line, column
    "nothing": ("", "L115", 1, 1),
    "comments alone": ("# one\n\n  # two\n", "L115", 4, 1),
    "a form feed alone": ("\f", "L143", 1, 1),
    "a type of the algorithm": (HEAD[:-2] + " -> int:\n    x = 1\n", "L143", 1, 45),
    "a longer name": (HEAD.replace("(", "\u0301(", 1) + "    x = 1\n", "L143", 1, 1),
    "names behind a long text": (
        f'ResCCLAlgo(AlgoName="{"é" * 450_000}", {"nRanks=4, " * 9000}):\n    x = 1\n',
        "L150",
        1,
        450_035,
    ),
    "another beginning": ("RescclAlgo(nRanks=4):\n    x = 1\n", "L143", 1, 1),
    "no algorithm": ("x = 1\n", "L143", 1, 1),
    "an indented header": ("  " + HEAD + "    x = 1\n", "L143", 1, 3),
    "no body": (HEAD, "L143", 1, 42),
    "an unindented body": (HEAD + "x = 1\n", "L143", 2, 1),
    "text after it": (HEAD + "    x = 1\ny = 2\n", "L143", 3, 1),
    "no colon": (HEAD[:-2] + "\n    x = 1\n", "L143", 1, 41),
    "a decimal point": (_body("x = 1.5"), "L143", 2, 9),
    "a NUL": (_body("x = \0"), "L143", 2, 9),
    "an endless string": (_body('transfer(0, 1, 0, 0, "recv)'), "L143", 2, 26),
    "a name after a number": (_body("x = 1y"), "L143", 2, 9),
    "deeper without a loop": (_body("x = 1", "  y = 2"), "L143", 3, 6),
    "shallower than its block": (HEAD + "    x = 1\n  y = 2\n", "L143", 3, 8),
    "tabs after spaces": (HEAD + "    x = 1\n\ty = 2\n", "L143", 3, 1),
    "a parenthesis left open": (_body("x = (1 + 2"), "L143", 2, 9),
    "a parenthesis left open in the header": ("ResCCLAlgo(nRanks=4\n", "L143", 1, 11),
    "a parenthesis too many": (_body("x = 1)"), "L143", 2, 10),
    "no right side": (_body("x ="), "L143", 2, 8),
    "two operators": (_body("x = 1 * / 2"), "L143", 2, 13),
    "a comparison": (_body("x == 1"), "L143", 2, 5),
    "two statements in a line": (_body("x = 1 y = 2"), "L143", 2, 11),
    "range without range": (_body("for r in 8:", "    x = r"), "L143", 2, 5),
    "range of nothing": (_body("for r in range():", "    x = r"), "L143", 2, 5),
    "range of four": (_body("for r in range(1, 2, 3, 4):", "    x = r"), "L143", 2, 5),
    "loop without a body": (_body("for r in range(4):", "x = 1"), "L143", 3, 5),
    "deep parentheses": (_body("x = " + "(" * 100_000 + "1" + ")" * 100_000), "L143", 2, 209),
    "deep blocks": (
        HEAD + "".join(" " * n + "for i in range(1):\n" for n in range(1, 200)),
        "L143",
        101,
        1,
    ),
    "an unknown word": (_body("Transfer(0, 1, 0, 0, recv)"), "L143", 2, 5),
    "a condition": (_body("if x:", "    y = 1"), "L143", 2, 5),
    "a reserved name": (_body("recv = 1"), "L143", 2, 5),
    "a reserved loop variable": (_body("for range in range(4):", "    x = 1"), "L143", 2, 9),
    "an undefined name": (_body("nNodes = 4", "x = 1 + nNode"), "L146", 3, 13),
    "a name that a loop of no turns would give": (
        _body("for i in range(0):", "    x = i", "transfer(x, 1, 0, 0, recv)"),
        "L146",
        4,
        14,
    ),
    "a parameter that isn't given": (_body("x = GPUPerNode"), "L146", 2, 9),
    "an unknown parameter": (_head(f"nRank=4, {AG}"), "L150", 1, 12),
    "a parameter twice": (_head(f"nRanks=4, {AG}, nRanks=4"), "L150", 1, 42),
    "no ranks": (_head(AG), "L150", 1, 1),
    "no operator": (_head("nRanks=4"), "L150", 1, 1),
    "a string for a number": (_head(f'nRanks="4", {AG}'), "L150", 1, 19),
    "a number for a string": (_head("nRanks=4, OpType=4"), "L150", 1, 29),
    "an unknown operator": (_head('nRanks=4, OpType="Alltoall"'), "L150", 1, 29),
    "no name": (_head(f'nRanks=4, {AG}, AlgoName=""'), "L150", 1, 51),
    "an unprintable name": (_head(f'nRanks=4, {AG}, AlgoName="a\x1b[1m"'), "L150", 1, 51),
    "an expression in the header": (_head(f"nRanks=n * 4, {AG}"), "L150", 1, 19),
    "no ranks at all": (_head(f"nRanks=0, {AG}"), "L150", 1, 19),
    "negative ranks": (_head(f"nRanks=-4, {AG}"), "L150", 1, 19),
    "very many ranks": (_head(f"nRanks=1000000, {AG}"), "L150", 1, 19),
    "no channels": (_head(f"nRanks=4, {AG}, nChannels=0"), "L150", 1, 52),
    "too many warps": (_head(f"nRanks=4, {AG}, nWarps=33"), "L150", 1, 49),
    "a node cut in two": (_head(f"nRanks=4, {AG}, GPUPerNode=3"), "L150", 1, 53),
    "cards shared unevenly": (
        _head(f"nRanks=4, {AG}, GPUPerNode=4, NICPerNode=3"),
        "L150",
        1,
        67,
    ),
    "more cards than GPUs": (_head(f"nRanks=4, {AG}, GPUPerNode=2, NICPerNode=4"), "L150", 1, 67),
    "cards of no node": (_head(f"nRanks=4, {AG}, NICPerNode=4"), "L150", 1, 53),
    "an assigned parameter": (_body("nRanks = 8"), "L150", 2, 5),
    "a parameter as loop variable": (_body("for nWarps in range(2):", "    x = 1"), "L150", 2, 9),
    "a number too long": (_body("x = " + "9" * 1000), "L153", 2, 9),
    "a number with very many digits": (_body("x = " + "9" * 100_000), "L143", 2, 1),
    "a header's number too long": (_head(f"nRanks={'9' * 999}, {AG}"), "L150", 1, 19),
    "an expression too deep": (_body("x = " + "1 + " * 100_000 + "1"), "L143", 1, 1),
    "a name in another alphabet, wrongly": (_body("größe = 1", "x = größe + y"), "L146", 3, 17),
    "a sum too large": (_body("x = 2147483647", "y = x + 1"), "L153", 3, 11),
    "a product too large": (
        _body("x = 1", "for i in range(40):", "    x = x * 2"),
        "L153",
        4,
        15,
    ),
    "a product too large at once": (
        _body("for i in range(99999):", "    x = i * i"),
        "L153",
        3,
        15,
    ),
    "a division by zero": (_body("x = 1 / (2 - 2)"), "L153", 2, 11),
    "a remainder by zero at once": (
        _body("for i in range(4):", "    x = 7 % (2 - i)"),
        "L153",
        3,
        15,
    ),
    "an endless loop": (_body("for i in range(0, 4, 0):", "    x = i"), "L153", 2, 26),
    "an enormous loop": (
        _body("for i in range(1000000000):", "    for j in range(1000000000):", "        x = i"),
        "L156",
        2,
        5,
    ),
    "loops that are enormous together": (
        _body("for i in range(10000):", "    for j in range(100000):", "        x = i"),
        "L156",
        3,
        9,
    ),
    "an enormous loop, one by one": (
        _body("x = 0", "for i in range(100000000):", "    x = (x * 7 + i) % 1000"),
        "L156",
        3,
        5,
    ),
    "many loops, one by one": (
        _body(
            "x = 0",
            "for i in range(1000000000):",
            "    for j in range(1000000000):",
            "        x = x % 7 + 1",
        ),
        "L156",
        3,
        5,
    ),
    "too many transfers": (
        _body(
            "for i in range(67108864):",
            "    transfer(0, 1, i, 0, recv)",
        ),
        "L156",
        3,
        9,
    ),
    "a negative source": (_body("transfer(0 - 1, 1, 0, 0, recv)"), "L101", 2, 14),
    "a source beyond": (_body("transfer(4, 1, 0, 0, recv)"), "L101", 2, 14),
    "a destination beyond": (_body("transfer(0, 4, 0, 0, recv)"), "L101", 2, 17),
    "a chunk beyond": (_body("transfer(0, 1, 0, 4, recv)"), "L103", 2, 23),
    "a negative step": (_body("transfer(0, 1, -1, 3, recv)"), "L124", 2, 20),
    "a rank to itself": (_body("transfer(1, 1, 0, 0, recv)"), "L124", 2, 5),
    "an unknown type": (_body("transfer(0, 1, 0, 0, send)"), "L124", 2, 26),
    "a number for a type": (_body("transfer(0, 1, 0, 0, 1)"), "L124", 2, 26),
    "an argument too few": (_body("transfer(0, 1, 0, recv)"), "L143", 2, 5),
    "an argument too many": (_body("transfer(0, 1, 0, 0, recv, 1)"), "L143", 2, 5),
    "two writes in one step": (
        _body("transfer(0, 1, 0, 0, recv)", "transfer(2, 1, 0, 0, recv)"),
        "L122",
        3,
        5,
    ),
}

LOOPS: dict[str, tuple[str, list[bool]]] = {
    # by property: text, and whether each loop is independent
    "a value carried within independent turns": (
        _body(
            "for n in range(3):",
            "    a = n",
            "    for b in range(n + 1):",
            "        transfer(a % 3, (a + 1) % 3, b, n, recv)",
            "        a = a * 2 + b",
            "    transfer(n, (n + 1) % 3, a, 0, rrc)",
        ),
        [True, False],
    ),
    "a value that only some turns of a loop assign": (
        _body(
            "for n in range(3):",
            "    a = 5",
            "    for b in range(4):",
            "        for c in range(n * b):",
            "            a = c",
            "    transfer(n, (n + 1) % 3, a, 0, rrc)",
        ),
        [True, False, False],
    ),
    "a value kept through a loop of no turns": (
        _body(
            "for n in range(3):",
            "    a = n",
            "for m in range(0):",
            "    a = m",
            "transfer(0, 1, a, 0, rrc)",
        ),
        [False, False],
    ),
    "a value read in the next turn of the loop outside": (
        _body(
            "a = 7",
            "for n in range(3):",
            "    transfer(0, 1, a, n, rrc)",
            "    for m in range(n + 2):",
            "        a = m",
        ),
        [False, False],
    ),
    "a loop variable read afterwards": (
        _body("for n in range(3):", "    a = n", "transfer(0, 1, n, 0, rrc)"),
        [False],
    ),
    "two transfers and a loop between them": (
        _body(
            "for n in range(9):",
            "    transfer(0, 1, n, 0, rrc)",
            "    for m in range(n, 0, -2):",
            "        transfer(1, 2, m, n % 3, recv)",
            "        transfer(2, 1, m, n % 3, rrc)",
            "    transfer(2, 0, n, 0, recv)",
        ),
        [True, True],
    ),
    "a late fault": (
        _body("for n in range(20):", "    transfer(0, 1, 100 / (17 - n), 0, rrc)"),
        [True],
    ),
    "a late fault in an inner loop": (
        _body(
            "for n in range(20):",
            "    for m in range(n):",
            "        transfer(0, 1, 100 / (19 - n - m), 0, rrc)",
        ),
        [True, True],
    ),
    "a late fault within carried turns": (
        _body(
            "for n in range(20):",
            "    a = 0",
            "    for m in range(n % 2 * n):",
            "        transfer(0, 1, 100 / (15 - n - a), 0, rrc)",
            "        a = a + 1",
        ),
        [True, False],
    ),
    "an earlier fault of a later statement": (
        _body(
            "for n in range(20):",
            "    a = 1 / (19 - n)",
            "    for m in range(n + 1):",
            "        a = 1 % (m - n + 3)",
            "        transfer(0, 1, a, n / 18, recv)",
            "    transfer(0, n % 11, n, 0, recv)",
        ),
        [True, True],
    ),
    "a late fault of a source below 0": (
        _body("for n in range(9):", "    transfer(2 - n, n / 2, n, 0, rrc)"),
        [True],
    ),
    "a late fault of a destination below 0": (
        _body("for n in range(9):", "    transfer(n / 2, 2 - n, n, 0, rrc)"),
        [True],
    ),
    "a late fault of a chunk below 0": (
        _body("for n in range(9):", "    transfer(0, 1, n, 2 - n, rrc)"),
        [True],
    ),
    "a late fault of a step below 0": (
        _body("for n in range(9):", "    transfer(0, 1, 2 - n, 0, rrc)"),
        [True],
    ),
    "a fault in a range of no step": (
        _body("for n in range(9):", "    for m in range(0, n, 5 - n):", "        a = m"),
        [True, True],
    ),
    "a fault that only a loop of no turns has": (
        _body("for n in range(0):", "    a = 1 / 0", "for n in range(1 / 1, 3):", "    a = b"),
        [True, True],
    ),
}
"""Loops whose vectorised execution is error-prone."""

RANKS = 3
"""The number of ranks of the random programs: small, so that some of their transfers are valid."""

_STATE, _TURNS = ("a", "b", "c", "d"), ("i", "j", "k", "l")


@st.composite
def _expressions(draw: st.DrawFn, known: tuple[str, ...], depth: int) -> str:
    """Expressions, mostly of defined names and with small values."""
    kind = draw(st.integers(0, 9))
    if depth == 0 or kind < 4:
        names = known if draw(st.integers(0, 40)) else _STATE + _TURNS
        return draw(st.one_of(st.integers(0, 4).map(str), st.sampled_from(names)))
    left, right = (draw(_expressions(known, depth - 1)) for _ in range(2))
    if kind < 7:
        return f"({left} + {right}) % {draw(st.integers(2, 9))}"
    sign, operator = draw(st.sampled_from(["", "", "", "-"])), draw(st.sampled_from("+-*/%"))
    return f"{sign}({left} {operator} {right})"


@st.composite
def _transfers(draw: st.DrawFn, known: tuple[str, ...]) -> str:
    src, chunk = (f"({draw(_expressions(known, 1))}) % {RANKS}" for _ in range(2))
    shift = draw(_expressions(known, 1)) if draw(st.integers(0, 20)) == 0 else "1"
    step = draw(_expressions(known, 1))
    word = draw(st.sampled_from(["recv", "rrc"]))
    return f"transfer({src}, ({src} + {shift}) % {RANKS}, {step}, {chunk}, {word})"


@st.composite
def _ranges(draw: st.DrawFn, known: tuple[str, ...]) -> str:
    bounds = [draw(_expressions(known, 1)) for _ in range(draw(st.integers(1, 3)))]
    if len(bounds) == 3:
        bounds[2] = draw(st.sampled_from(["1", "2", "-1", "-2", bounds[2]]))
    bounds[0 if len(bounds) == 1 else 1] += draw(st.sampled_from(["", " + 3", " + 7"]))
    return ", ".join(bounds)


@st.composite
def _blocks(draw: st.DrawFn, known: tuple[str, ...], depth: int) -> list[str]:
    """Lines of a block, with every possible error at run time."""
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.integers(0, 5 if depth else 3))
        if kind < 2:
            name = draw(st.sampled_from(_STATE))
            lines.append(f"{name} = {draw(_expressions(known, 2))}")
            known = (*known, name)
        elif kind < 4:
            lines.append(draw(_transfers(known)))
        else:
            # Mostly a new name, so that some loops are independent of those around them.
            name = _TURNS[depth] if draw(st.integers(0, 5)) else draw(st.sampled_from(_STATE))
            lines.append(f"for {name} in range({draw(_ranges(known))}):")
            lines += [f"    {line}" for line in draw(_blocks((*known, name), depth - 1))]
    return lines


@st.composite
def programs(draw: st.DrawFn) -> str:
    """Valid texts with nested loops, values carried between iterations and read after loops."""
    known = tuple(draw(st.lists(st.sampled_from(_STATE), unique=True, min_size=1)))
    lines = [f"{name} = {draw(st.integers(0, 3))}" for name in known]
    return "\n    ".join([HEAD.strip(), *lines, *draw(_blocks(known, 3))])
