"""Machine code of kernels, compiled without a GPU: its resources, and what its instructions do."""

from __future__ import annotations

import pickle
import re
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest

import sley
from sley.engine.devices.cuda import compiler
from sley.engine.devices.cuda.compiler import Compiled, compile_text
from sley.errors.disk_cache import cached

_FUNCTION = re.compile(r"^\s*\.type\s+(\S+),@function$", re.MULTILINE)
_OF_SLEY = re.compile(r"4sley(\d+)(\w+)")
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z][\w.]*)([^;]*)")
_JUMP = re.compile(r"\*/\s+BRA `")
_GLOBAL_LOAD, _GLOBAL_STORE = re.compile(r"LDG?\.E\b"), re.compile(r"STG?\.E\b")
_SWITCH_LOAD, _OF_VECTOR = re.compile(r"LDGMC\.E\b"), re.compile(r"x[48]\b")
_WIDTH = re.compile(r"\.(128|64|U?S?16|[US]8)\b")
_FENCE, _STRONG = re.compile(r"MEMBAR\.\w+\.SYS\b"), ".STRONG.SYS"
_COUNTER_BYTES = 8
_PREDICATE = re.compile(r"!?U?P(T|\d)")
_LABEL, _BRANCH = re.compile(r"(\.L_x_\d+):"), re.compile(r"@\S+ BRA .*`\((\S+)\)")
_REGISTER = re.compile(r"(?<!U)R(\d+)(\.64)?")


def skip_without_nvrtc() -> None:
    try:
        compiler.version()
    except sley.SleyError as error:
        pytest.skip(f"no NVRTC: {error.diagnostics[0].found}")


def compiled_text(text: str, architecture: str) -> Compiled:
    """What the compiler makes of a text, kept until the text or a compiler changes."""
    key = [str(compiler.version()), Path(compiler.__file__).read_bytes(), architecture, text]

    def build(path: Path) -> None:
        path.write_bytes(pickle.dumps(compile_text(text, architecture)))

    value: Compiled = pickle.loads(cached(key, ".pickle", build).read_bytes())
    return value


@cache
def disassembler() -> str:
    """NVIDIA's disassembler; skips where it isn't installed."""
    pathfinder = pytest.importorskip("cuda.pathfinder")
    found: str | None = pathfinder.find_nvidia_binary_utility("nvdisasm")
    if found is None:
        pytest.skip("no nvdisasm, which the package nvidia-cuda-nvdisasm contains")
    return found


@dataclass
class Code:
    """What the instructions of a function do, each counted once, however often it runs.

    fences: of the memory of all GPUs. acquires: loads of counters that order what follows.
    barriers: of a block's threads. named: those of them that say which barrier it is and how many
    threads it waits for, as "number:threads"; R for a number in a register. in_flight: the most
    bytes of data that a thread loads before it stores any.
    loads, stores: by bytes, weak ones. strong_loads, strong_stores: those that all GPUs see, of
    counters and of data with flags, without acquires. A weak load may get old bytes for ever.
    switched: strong loads through a switch, by bytes.
    rounds: before the first call of a primitive, loads of which each waits for the one before, if
    every branch is another warp's. bytes_before: the code up to there.
    """

    fences: int = 0
    acquires: int = 0
    barriers: int = 0
    named: list[str] = field(default_factory=list)
    in_flight: int = 0
    switched: Counter[int] = field(default_factory=Counter)
    loads: Counter[int] = field(default_factory=Counter)
    stores: Counter[int] = field(default_factory=Counter)
    strong_loads: Counter[int] = field(default_factory=Counter)
    strong_stores: Counter[int] = field(default_factory=Counter)
    rounds: int = 0
    bytes_before: int = 0


def functions(cubin: bytes) -> dict[str, Code]:
    """The functions of machine code: kernels and sley's own, by their names in the source."""
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [disassembler(), "-c", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    _, *parts = _FUNCTION.split(text)
    found = {}
    for name, body in zip(parts[::2], parts[1::2], strict=True):
        if match := _OF_SLEY.search(name):
            name = match[2][: int(match[1])]
        if not name.startswith("$"):  # the compiler's own, such as divisions
            found[name] = _code(body.splitlines())
            found[name].rounds, found[name].bytes_before = _begin(body.splitlines())
    return found


def _begin(lines: Sequence[str]) -> tuple[int, int]:
    """`rounds` and `bytes_before` of a kernel. A warp issues in order: an instruction waits for the
    loads of what it reads, and so does everything behind it."""
    now, most, last, size = 0, 0, 0, 0
    arrives: dict[int, int] = {}  # registers whose loads are under way
    returns: list[tuple[str, int]] = []  # where the parts of other warps end, and when they began
    for number, line in enumerate(lines):
        label = _LABEL.match(line)
        while label and label[1] in dict(returns):
            most, now = max(most, now), returns.pop()[1]
        match = _INSTRUCTION.search(line)
        if match is None:
            continue
        name, operands, size = match[1], match[2], size + 16
        called = _OF_SLEY.search(line) if name.startswith("CALL") else None
        if called and called[2][: int(called[1])] != "refresh":
            break
        to, _, read = operands.partition(",")
        for register in _registers(operands if name.startswith("ST") else read):
            now = max(now, arrives.pop(register, 0))
        for register in _registers(to):
            arrives.pop(register, None)
        if _GLOBAL_LOAD.match(name):
            last, first = now + 1, _registers(to)[0]
            arrives |= dict.fromkeys(range(first, first + max(_width(name) // 4, 1)), last)
        elif name == "CCTL.IVALL":
            now = max(now, last)
        elif name.startswith("BAR."):
            now = most = max(now, most)
        elif (branch := _BRANCH.search(line)) and f"{branch[1]}:" in lines[number:]:
            returns.append((branch[1], now))
    return max(now, most), size


def _registers(operands: str) -> list[int]:
    """The registers that operands name, with the second half of those of 64 bits."""
    found = [(int(first), bool(wide)) for first, wide in _REGISTER.findall(operands)]
    return [each for first, is_wide in found for each in range(first, first + 1 + is_wide)]


def _code(lines: Sequence[str]) -> Code:
    code = Code()
    loaded, last = 0, ""
    for line in lines:
        if _JUMP.search(line):  # what follows is another path
            loaded = 0
        match = _INSTRUCTION.search(line)
        if match is None:
            continue
        name = match[1]
        if _FENCE.match(name):
            code.fences += 1
        elif name.startswith("BAR."):
            code.barriers += 1
            code.named += _named(match[2])
        elif name == "CCTL.IVALL" and _GLOBAL_LOAD.match(last) and _STRONG in last:
            code.acquires += 1
            code.strong_loads[_width(last)] -= 1
        elif _SWITCH_LOAD.match(name):
            width = 16 if _OF_VECTOR.search(name) else _width(name.replace("F64", "64"))
            (code.switched if _STRONG in name else code.loads)[width] += 1
            loaded += width
            code.in_flight = max(code.in_flight, loaded)
        elif _GLOBAL_LOAD.match(name):
            width, is_strong = _width(name), _STRONG in name
            (code.strong_loads if is_strong else code.loads)[width] += 1
            if not (is_strong and width == _COUNTER_BYTES):
                loaded += width
                code.in_flight = max(code.in_flight, loaded)
        elif _GLOBAL_STORE.match(name):
            (code.strong_stores if _STRONG in name else code.stores)[_width(name)] += 1
            loaded = 0
        if name.startswith(("MEMBAR", "LD", "ST")):
            last = name
    return code


def _named(operands: str) -> list[str]:
    """The barrier of its operands as "number:threads"; none if it is of all threads."""
    numbers = [o for o in operands.replace(" ", "").split(",") if not _PREDICATE.fullmatch(o)]
    words = ["R" if o[0] == "R" else str(int(o, 16)) for o in numbers]
    return [":".join(words)] if len(words) > 1 else []


def _width(name: str) -> int:
    """The bytes that a load or store moves."""
    match = _WIDTH.search(name)
    return int(match[1].lstrip("US")) // 8 if match else 4
