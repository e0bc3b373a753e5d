"""Recognition: what kind of file a path names, by its content.

`kind_of` looks at the beginning of a file; it neither executes nor fully parses it, so it takes
little time and memory for any content. `refuse_kind` says what a file is, and which command takes
it.
"""

from __future__ import annotations

import codecs
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from sley.errors import Place, SleyError
from sley.errors.schedules import F550
from sley.errors.text_files import open_file

_LOOKED_AT = 1 << 20
"""Bytes at the beginning of a file that decide."""


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    text: what a file of this kind is, for messages. command: the command that takes it, with
    {file} for its path; "" for none. remedy: what to do instead of a command.
    """

    text: str
    command: str = ""
    remedy: str = ""

    def advice(self, file: str) -> str:
        """What to do with a file of this kind; "" if there is nothing to say."""
        return f"Use it with: {self.command.format(file=file)}" if self.command else self.remedy


SLEY_PLAN = Kind("a plan of sley", "sley verify {file}")
MSCCL_XML = Kind("an MSCCL XML plan", "sley verify {file}")
MSCCLPP = Kind("an MSCCL++ execution plan", "sley verify {file}")
TECCL = Kind("a TE-CCL schedule", "sley import {file}")
FORESTCOLL = Kind("ForestColl trees", "sley import {file}")
TACCL_SCHEDULE = Kind("a TACCL schedule", "sley import {file}")
TACCL_SKETCH = Kind(
    "a TACCL sketch, which is an input of TACCL's solver and no schedule",
    remedy="Import the schedule that TACCL's solver writes with it, NAME.sccl.json.",
)
TECCL_INPUT = Kind(
    "an input of TE-CCL's solver and no schedule",
    remedy="Import the schedule that TE-CCL writes for it, which schedule_output_file names; for a "
    "topology, name the machine: `sley topology list` prints them.",
)
SYCCL_CONFIG = Kind(
    "a configuration of SyCCL, which is an input of its solver and no schedule",
    remedy="sley reads its schedules as MSCCL XML only: give such a file. For a topology, name a "
    "machine (`sley topology list` prints them), or write the links in TOML.",
)
NCCL_GRAPHS = Kind(
    "a graph dump of NCCL (NCCL_GRAPH_DUMP_FILE), the rings and trees that its search chose",
    remedy="For a topology, let the same run write NCCL's topology: NCCL_TOPO_DUMP_FILE=topo.xml. "
    "`sley choose --nccl` simulates NCCL's choices.",
)
TACCL_TOPOLOGY = Kind("a topology in TACCL's JSON", "sley topology show {file}")
NCCL_TOPOLOGY = Kind("a topology in NCCL's XML", "sley topology show {file}")
HWLOC = Kind("a topology in hwloc's XML (lstopo)", "sley topology show {file}")
NCCL_LOG = Kind("a log of NCCL with the topology that it found", "sley topology show {file}")
AMD_SMI = Kind(
    "a topology that rocm-smi --showtopo or amd-smi topology printed", "sley topology show {file}"
)
NVIDIA_SMI = Kind("a topology that nvidia-smi topo -m printed", "sley topology show {file}")
SLEY_TOPOLOGY = Kind("a topology in TOML", "sley topology show {file}")
PACKAGE_TABLE = Kind("a table of plans", "sley package --table {file} --target NAME DIR")
POLICY = Kind("a policy of a tuner", "sley tune show {file}")
OLD_POLICY = Kind(
    "a policy of a tuner of an older sley",
    remedy="Train again: `sley tune train -o policy.toml` writes a table of plans.",
)
TUNER_CSV = Kind(
    "a table for NCCL's or RCCL's tuner plug-in",
    remedy="NCCL reads it itself: NCCL_TUNER_CONFIG_FILE names it. sley writes such tables with "
    "`sley tune export`, and doesn't read them.",
)
MSCCL_LIST = Kind(
    "a list of algorithms for msccl (MSCCL_CONFIG)",
    remedy="Give one of the XML files that it lists.",
)
KERNELS = Kind(
    "source code of kernels",
    remedy="Compile it with nvcc, hipcc or a C++ compiler, or give the plan that it was made from.",
)
CHAKRA = Kind(
    "a Chakra execution trace",
    remedy="ASTRA-sim reads it. sley writes such traces, and doesn't read them: give the plan.",
)
MSCCL_TOOLS = Kind("a Python script for msccl-tools", "sley compile {file}")
MSCCLPP_SCRIPT = Kind(
    "a Python script for MSCCL++'s language",
    remedy="Run it with MSCCL++'s Python package, and prove the execution plan that it prints: "
    "sley verify PLAN.json.",
)
PYTHON = Kind("a Python file", "sley compile {file}")
RESCCLANG = Kind("a text in ResCCLang", "sley compile {file}")
_MADE_FROM = (
    "Give what it was made from: a plan, as `sley compile -o` writes it, or a topology, such as "
    "those that `sley topology list` prints."
)
PAGE = Kind("a page in HTML or a picture in SVG", remedy=_MADE_FROM)
PICTURE = Kind("a picture (PNG, JPEG or GIF)", remedy=_MADE_FROM)
PDF = Kind("a document in PDF", remedy=_MADE_FROM)
_READABLE = "Give one of the files that docs/foreign-files.md lists."
JSON = Kind("JSON of another kind", remedy=_READABLE)
UNKNOWN_JSON = Kind("JSON without any key of a plan, a schedule or a topology", remedy=_READABLE)
XML = Kind("XML of another kind", remedy=_READABLE)
TOML = Kind("TOML of another kind", remedy=_READABLE)
TEXT = Kind("a text of another kind", remedy=_READABLE)
EMPTY = Kind("an empty file")
BINARY = Kind("a binary file")
FOLDER = Kind(
    "a folder", remedy="Name one file in it; sley doctor FOLDER examines a directory of plans."
)
SPECIAL = Kind("no regular file but a pipe, a socket or a device", remedy="Name a regular file.")
MISSING = Kind("nothing: no such file", remedy="Check the path.")
UNREADABLE = Kind("a file that can't be read", remedy="Check the permissions.")

SCHEDULES = (TECCL, FORESTCOLL, TACCL_SCHEDULE)
RUNTIME_PLANS = (MSCCL_XML, MSCCLPP)
PLANS = (SLEY_PLAN, *RUNTIME_PLANS)
EXECUTED = (PYTHON, MSCCL_TOOLS)
"""Kinds of files that Python runs."""

PROGRAMS = (*EXECUTED, RESCCLANG)
TOPOLOGIES = (TACCL_TOPOLOGY, NCCL_TOPOLOGY, NCCL_LOG, HWLOC, AMD_SMI, NVIDIA_SMI, SLEY_TOPOLOGY)
VAGUE = (JSON, UNKNOWN_JSON, XML, TOML, TEXT, EMPTY, BINARY)
"""Kinds of files whose content shows no purpose; a damaged file of another kind is often one."""

ABSENT = (FOLDER, SPECIAL, MISSING, UNREADABLE)
"""Kinds without a content."""


def kind_of(path: str | os.PathLike[str]) -> Kind:
    """The kind of the file at a path. It never fails, and never waits for content."""
    try:
        mode = Path(path).stat().st_mode
        if stat.S_ISDIR(mode):
            return FOLDER
        if not stat.S_ISREG(mode):
            return SPECIAL
        with open_file(Path(path)) as stream:
            content = stream.read(_LOOKED_AT)
        return kind_of_content(content, Path(path).suffix.lower())
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a null byte
        return MISSING
    except OSError:
        return UNREADABLE


_BY_SUFFIX = {
    ".plan": SLEY_PLAN,
    ".xml": MSCCL_XML,
    ".json": MSCCLPP,
    ".py": PYTHON,
    ".resccl": RESCCLANG,
}


def presumed_kind(path: str | os.PathLike[str], kind: Kind) -> Kind:
    """The kind that the suffix of a file's name promises, if its content doesn't show one, as it is
    damaged or missing: the reader of this kind says what is wrong. Else `kind`, that of its
    content."""
    if (kind in VAGUE and kind is not UNKNOWN_JSON) or kind is MISSING:
        return _BY_SUFFIX.get(Path(path).suffix.lower(), kind)
    return kind


def refuse_kind(path: str | os.PathLike[str], kind: Kind, expected: str) -> SleyError:
    """The error for a file of another kind than a command takes (F550)."""
    file = os.fspath(path)
    advice = kind.advice(file)
    return F550.error(at=Place(file), expected=expected, found=kind.text, remedy=advice)


def kind_of_content(content: bytes, suffix: str = "") -> Kind:
    """The kind of a file by the first bytes of its content. suffix: of its name; Python that begins
    with another kind of text, as a string, is recognised only with .py."""
    if content.startswith(b"PK\x03\x04"):
        return OLD_POLICY if b"policy.json" in content[:128] else BINARY
    for start, kind in _STARTS.items():
        if content.startswith(start):
            return kind
    if _CHAKRA.match(content):
        return CHAKRA
    try:
        # A character at the end may be cut.
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(content)
    except UnicodeDecodeError:
        return BINARY
    if "\0" in text:
        return BINARY
    text = text.lstrip()
    if not text:
        return EMPTY
    if text.startswith("<"):
        found = _FIRST_ELEMENT.match(text)
        other = PAGE if _PAGE.match(text) else XML
        return _XML_ROOTS.get(found[1], other) if found else other
    if text.startswith("{"):
        return _kind_of_json(text) or JSON
    if _AMD_JSON.match(text):
        return AMD_SMI
    if suffix == ".py" and _PYTHON.search(text):
        return _kind_of_python(text)
    return _kind_of_text(text) or TEXT


# A message with its length, whose first two fields are a version and an attribute.
_CHAKRA = re.compile(rb"[\x80-\xff]{0,4}[\x00-\x7f]\x0a[\x01-\x20][0-9][\w.+-]*+\x12")

_AMD_JSON = re.compile(r'\[\s*+\{\s*+"gpu":\s*+[0-9]++,\s*+"bdf":\s*+"[^"\n]{1,40}",\s*+"links":')

_XML_ROOTS = {
    "algo": MSCCL_XML,
    "Algo": FORESTCOLL,
    "system": NCCL_TOPOLOGY,
    "topology": HWLOC,
    "msccl_algos": MSCCL_LIST,
    "graphs": NCCL_GRAPHS,
}
# Space, comments, instructions and hwloc's document type, then the first element. No branch begins
# like another, and what has matched is kept, so that the time is proportional to the length.
_FIRST_ELEMENT = re.compile(
    r"(?:\s++|<!--.*?-->|<\?.*?\?>|<!DOCTYPE topology SYSTEM.*?>)*+<([A-Za-z_][\w.:-]{0,100})",
    re.DOTALL,
)
_STARTS = {
    **dict.fromkeys((b"\x89PNG", b"GIF8", b"\xff\xd8\xff"), PICTURE),
    b"%PDF-": PDF,
    b"sleyplan": SLEY_PLAN,
}
_PAGE = re.compile(r"(?is)(?:\s++|<!--.*?-->|<\?.*?\?>)*+<(?:!doctype )?(?:html|svg)\b")

_JSON_KINDS = (
    ({"1-Epoch_Duration"}, TECCL),
    ({"TopologyParams"}, TECCL_INPUT),
    ({"coll", "hosts"}, SYCCL_CONFIG),
    ({"gpus[", "collective"}, MSCCLPP),
    ({"intranode_sketch"}, TACCL_SKETCH),
    ({"gpus_per_node", "alpha"}, TACCL_TOPOLOGY),
)
"""Keys of the outermost object that only files of one kind have; "gpus[" is a list."""

_SCCL = {"algorithm": TACCL_SCHEDULE, "topology": TACCL_TOPOLOGY}


def _kind_of_json(text: str) -> Kind | None:
    """The kind of a JSON object by the keys of its outermost object; None for another one, which
    may be damaged."""
    keys: set[str] = set()
    for key, value in _outermost(text):
        keys.add(f"{key}[" if value == "[" else key)
        if key == "sccl_type" and value in _SCCL:
            return _SCCL[value]
        for wanted, kind in _JSON_KINDS:
            if wanted <= keys:
                return kind
    known = {"sccl_type", *(key.rstrip("[") for wanted, _ in _JSON_KINDS for key in wanted)}
    is_whole = keys and text.rstrip().endswith("}")
    return UNKNOWN_JSON if is_whole and known.isdisjoint(key.rstrip("[") for key in keys) else None


# A string without an end ends with the text: what is looked at may be cut off.
_TOKEN = re.compile(r'"((?:[^"\\]|\\.)*+)"?+\s*+(:?)|[][{}]', re.DOTALL)
_MOST_TOKENS = 200_000


def _outermost(text: str) -> Iterator[tuple[str, str]]:
    """The keys of the outermost object of a JSON text that may be cut off, each with its value if
    that is a string, "[" and "{" for a list and an object, and "" for others."""
    depth, key = 0, ""
    for token in islice(_TOKEN.finditer(text), _MOST_TOKENS):
        word = token[0]
        if word in ("]", "}"):
            depth -= 1
            if depth <= 0:
                break
        elif depth == 1:
            if key:
                yield key, "" if token[2] else token[1] if word[0] == '"' else word
            key = token[1] if token[2] else ""
        if word in ("[", "{"):
            depth += 1
    if key:
        yield key, ""


def _lines(*patterns: str) -> str:
    """A pattern that finds the beginning of a line that fits one of these patterns."""
    return "|".join(f"^{pattern}" for pattern in patterns)


_GAP = r"(?:\x1b\[[0-9;]*+m|[ \t])"
_PYTHON_LINES = _lines(
    r"import[ \t]++[A-Za-z_][\w.]*+(?:[ \t]++as[ \t]|[ \t]*+(?:[,;#]|$))",
    r"from[ \t]++[A-Za-z_.][\w.]*+[ \t]++import[ \t]",
    r"(?:def|class)[ \t]++\w++[ \t]*+[(:]",
    r"with[ \t][^\n]*:[ \t]*$",
    r"@[A-Za-z_][\w.]*+(?:\(|[ \t]*$)",
)
_TEXT_LINES = (
    (NCCL_LOG, _lines(r"[^\n]{0,200}?NCCL INFO === System : max")),
    (
        AMD_SMI,
        _lines(
            r"[ \t]*+=+[ \t]*+(?:Weight|Hops|Link Type) between two GPUs\b",
            r"[ \t]*+(?:ACCESS|WEIGHT|HOPS|LINK TYPE) TABLE:",
        ),
    ),
    (NVIDIA_SMI, _lines(rf"{_GAP}*+GPU0{_GAP}++X(?!\w)")),
    (RESCCLANG, _lines(r"[ \t]*+(?:def[ \t]++)?ResCCLAlgo[ \t]*+\(")),
    (KERNELS, _lines(r"[ \t]*+#[ \t]*+include[ \t]*+[<\"]", r"// Kernels of ")),
    (
        TUNER_CSV,
        _lines(
            r"(?:allreduce|allgather|reducescatter|broadcast|reduce)[ \t]*+,[ \t]*+[0-9-]",
            r"#?[ \t]*+collective_type[ \t]*+,",
        ),
    ),
    (PYTHON, _PYTHON_LINES),
    (TEXT, _lines("```")),  # Markdown, with examples
)
"""What a line of a text of each kind looks like. The kind of the first such line is the text's: a
program may contain other texts as strings."""

_FIRST_LINE = re.compile(
    "|".join(f"(?P<k{k}>{pattern})" for k, (_, pattern) in enumerate(_TEXT_LINES)), re.MULTILINE
)

_PYTHON = re.compile(_PYTHON_LINES, re.MULTILINE)
_IMPORTED = re.compile(
    _lines(r"(?:from|import)[ \t]++(msccl|mscclpp\.language|sley)(?!\w)"), re.MULTILINE
)
_MSCCL_PROGRAM = re.compile(_lines(r"[ \t]*+with[ \t]++MSCCLProgram\("), re.MULTILINE)
_TOML_LINES = tuple(
    (kind, re.compile(pattern, re.MULTILINE))
    for kind, pattern in (
        (POLICY, _lines(r"fingerprint[ \t]*+=[ \t]*+\"")),
        (PACKAGE_TABLE, _lines(r"\[\[plans\]\]")),
        (
            SLEY_TOPOLOGY,
            _lines(
                r"\[(?:nvlink|pcie|cards|racks)\]",
                r"(?:vertices|links)[ \t]*+=",
                r"gpus[ \t]*+=[ \t]*+[0-9]",
                r"like[ \t]*+=[ \t]*+[\"']",
            ),
        ),
        (TOML, _lines(r"[\w.-]++[ \t]*+=[ \t]*+(?:[\"'\[{0-9]|true|false)")),
    )
)


def _kind_of_text(text: str) -> Kind | None:
    """The kind of a text by the beginnings of its lines; None without a known one."""
    found = _FIRST_LINE.search(text)
    if found is None:
        return next((kind for kind, pattern in _TOML_LINES if pattern.search(text)), None)
    kind = next(kind for k, (kind, _) in enumerate(_TEXT_LINES) if found[f"k{k}"] is not None)
    return _kind_of_python(text) if kind is PYTHON else kind


def _kind_of_python(text: str) -> Kind:
    names = {found[1] for found in _IMPORTED.finditer(text)}
    # A script may import msccl in a module of its own.
    if "msccl" in names or ("sley" not in names and _MSCCL_PROGRAM.search(text)):
        return MSCCL_TOOLS
    return MSCCLPP_SCRIPT if "mscclpp.language" in names and "sley" not in names else PYTHON
