"""Write the pages that come from the code: data-model.md, nccl-functions.md and those in errors/;
and from files beside docs/: install.md, examples.md, changes.md and contributing.md.

    python docs/generate.py [FOLDER]    write them into the folder, by default the one of this file

The descriptions come from the docstrings: text, then one entry for each field, `name: ...` or
`name, name: ...` at the margin, its further lines indented. A field that nobody describes is an
error, and so is a module of `sley.ir` that has no place on the page.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
import sys
import tomllib
from collections.abc import Iterator
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any

import sley.ir
from sley.errors import Rule
from sley.errors.catalog import all_rules
from sley.ir.tables import Value, column_types

# In the order of processing. None: a module of functions, with nothing for the page.
MODULES: dict[str, str | None] = {
    "tables": "Tables and edges",
    "words": "Words",
    "collective": "Collective",
    "sources": "Sources",
    "program": "Program",
    "fabric": "Vertices and links",
    "cost_model": "CostModel",
    "topology": "Topology",
    "dag": "Dependencies, order and blocks",
    "plan": "Plan",
    "one_sided": "One-sided plans",
    "connections": "Connections and messages",
    "cut": "Homes of chunks",
    "conditions": "Condition",
    "extension": None,
    "collectives": None,
    "dependencies": None,
    "graph": None,
    "linear": None,
    "happens_before": None,
    "faults": None,
    "groups": None,
    "orders": None,
    "routes": None,
    "sizes": None,
    "plan_digest": None,
    "plan_table": None,
}

# Page: its title, a sentence, and the modules of `sley.errors` with its rules.
FAMILIES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "language": ("Language", "Requirements on programs.", ("language", "rescclang")),
    "compiler": (
        "Compiler",
        "Requirements on a program, its directives, options and target.",
        ("compiler",),
    ),
    "verifier": ("Verifier", "Requirements on every plan before it runs.", ("verifier",)),
    "files": (
        "Files",
        "Requirements on files that are read, and on plans that are written.",
        ("formats",),
    ),
    "mscclpp": (
        "MSCCL++ plans",
        "Requirements on execution plans of MSCCL++ that are read or written.",
        ("mscclpp",),
    ),
    "schedules": (
        "Synthesisers' schedules",
        "Requirements on schedules, and on files that are recognised by their content.",
        ("schedules",),
    ),
    "deployment": (
        "Deployment",
        "What runtimes make of directories of files, and requirements on packages.",
        ("deployment",),
    ),
    "runtime": ("Runtime", "Errors of runs on processes of this machine.", ("runtime",)),
    "devices": (
        "Kernels and devices",
        "Errors of kernels on GPUs, or on threads of this machine.",
        ("devices",),
    ),
    "communicator": (
        "Communicator",
        "Errors while ranks make a communicator, during its calls, while a plan is selected, and "
        "of programs that call NCCL.",
        ("communicator", "calls", "selection", "nccl"),
    ),
    "torch": (
        "PyTorch backend",
        "Errors in collectives of torch.distributed.",
        ("torch",),
    ),
    "policies": (
        "Policies and tuning",
        "Requirements on what a tuner has learned, and on its training.",
        ("policy", "tuning"),
    ),
    "topologies": (
        "Topologies",
        "Requirements on the description of a cluster.",
        ("topology",),
    ),
    "simulation": ("Simulation", "Requirements on the input of a simulation.", ("simulation",)),
    "reports": (
        "Pictures and reports",
        "Errors in the contents and files of pictures and reports.",
        ("report",),
    ),
}

DATA_MODEL_HEAD = """\
# Data model

Each stage of sley hands the next one an immutable value. Large ones are tables: frozen dataclasses
of read-only NumPy columns of equal length, in which `table.column` is an array and `table[i]` is a
row for people, `table.to_dict()` has the columns as lists with words in place of numbers, and
`table.to_pandas()` a DataFrame. `NONE`, which is -1, means no value. A column named after a table
or a row ("source", "transfer") contains row numbers.

`docs/generate.py` makes this page from the docstrings. [The machine](machine.md) defines the
*meaning* of a plan.
"""

ERRORS_HEAD = """\
# Error codes

Every error of sley has a code, which does not change between versions. `sley explain CODE` prints
the same text as these pages. A message contains the place in your code, what sley expected there,
what it found, and a remedy. The first letter of a code identifies the stage.

`docs/generate.py` makes these pages from the rules in `sley.errors`.
"""

NCCL_HEAD = """\
# Functions of NCCL

Who runs each function of nccl.h and nccl_device.h for a communicator whose collectives
[sley's library](nccl.md) runs, and what sley does with each field of `ncclConfig_t`, which NCCL
gets, too. "Both" have a state of their own: of the communicator, the reduction, the group; one that
grew is NCCL's alone. sley ignores the hints of a call's config. What NCCL runs is refused without
it ([N701](errors/communicator.md#N701)), and where its version lacks the function
([N702](errors/communicator.md#N702)). sley's windows are null, its estimates of time -1. It reads a
struct by its own size.

NCCL's communicator is made, in all ranks, at the first collective for which sley has no kernels, or
by `ncclCommWindowRegister` or `ncclDevCommCreate`. Calls that other ranks needn't make are refused
before that (N701), as are those in a captured stream; registered buffers are dropped, and there is
nothing to suspend. If making it fails on one rank, it has failed on all. `SLEY_NCCL=eager` makes it
with sley's, and so does a list of functions, because others are left to NCCL.

`docs/generate.py` makes this page from `native/nccl`.
"""
RUNS = {"RUN": "sley, else NCCL", "OWN": "both", "PASSED": "NCCL", "ALONE": "NCCL, else sley"}
FIELDS = {"size": "read", "magic": "read", "blocking": "followed", "commName": "logged"}

# A row of native/nccl/functions.def: macro, name, version.
FUNCTION = re.compile(r"^(RUN|OWN|PASSED|ALONE)\(.*?, (\w+), ([\d.]+), \(", re.MULTILINE)
FIELD = re.compile(r"^FIELD\((.*?), (\w+), \d+, ([\d.]+)\)$", re.MULTILINE)

ENTRY = re.compile(r"^(\w+(?:, \w+)*): (.*)$")
SHAPE = re.compile(r"^((?:int|float|uint)\d+|bool) (\([^)]*\))[,:]? *")


class UndescribedError(Exception):
    """The code does not say what the page needs."""


def split_docstring(owner: Any, names: set[str]) -> tuple[str, dict[str, str]]:
    """A docstring's text, and its entries for `names`."""
    text: list[str] = []
    entries: dict[str, str] = {}
    current: list[str] = []
    for line in (inspect.getdoc(owner) or "").splitlines():
        match = ENTRY.match(line)
        if match and set(match[1].split(", ")) <= names:
            current = match[1].split(", ")
            entries |= dict.fromkeys(current, match[2])
        elif current and line.startswith(" "):
            entries |= {name: f"{entries[name]} {line.strip()}" for name in current}
        else:
            current = []
            text.append(line)
    return "\n".join(text).strip(), entries


def prose(text: str) -> str:
    """Text of a docstring or a rule as Markdown: what looks like a tag is none."""
    parts = text.replace("``", "`").split("`")
    parts[::2] = [part.replace("<", "&lt;") for part in parts[::2]]
    return "`".join(parts)


def cell(text: str) -> str:
    """Text for a cell of a Markdown table, as a sentence."""
    text = prose(" ".join(text.split())).replace("|", "\\|")
    return text[:1].upper() + text[1:]


def code(*words: str) -> str:
    """Words for a cell of a Markdown table, as code."""
    return ", ".join(f"`{word}`" for word in words).replace("|", "\\|")


def shape_and_meaning(text: str) -> tuple[str, str]:
    """Divide "int32 (ranks,), how many" in two; the first is empty where there is no shape."""
    shape = SHAPE.match(text)
    return (f"{shape[1]} {shape[2]}", text[shape.end() :]) if shape else ("", text)


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    yield ""
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def fields_of(cls: type) -> Iterator[str]:
    """A dataclass: its text, its fields, what follows from them."""
    fields = dataclasses.fields(cls)
    columns = column_types(cls) if issubclass(cls, Value) else {}
    text, entries = split_docstring(cls, {f.name for f in fields})
    yield prose(text)
    missing = [f.name for f in fields if not entries.get(f.name)]
    if missing:
        raise UndescribedError(
            f"{cls.__module__}.{cls.__name__} does not describe {', '.join(missing)}"
        )
    # Fields that share a description share a row, at the place of the first.
    rows: dict[tuple[str, str], list[str]] = {}
    for f in fields:
        shape, meaning = shape_and_meaning(entries[f.name])
        if not meaning:
            raise UndescribedError(f"{cls.__name__}.{f.name} has a shape, but no meaning")
        kind = shape or str(columns.get(f.name, f.type))
        rows.setdefault((kind, meaning), []).append(f.name)
    if rows:
        yield from table(
            ("field", "type", "meaning"),
            [(code(*names), code(kind), cell(text)) for (kind, text), names in rows.items()],
        )
    derived = [
        (code(name), code(shape) if shape else "", cell(meaning))
        for name, member in vars(cls).items()
        if isinstance(member, cached_property | property) and inspect.getdoc(member)
        for shape, meaning in [shape_and_meaning(inspect.getdoc(member) or "")]
    ]
    if derived:
        yield "\nDerived:"
        yield from table(("property", "type", "meaning"), derived)


def members_of(cls: type[Enum]) -> Iterator[str]:
    """An enumeration: its text and its members."""
    yield prose(split_docstring(cls, set())[0])
    yield from table(
        ("member", "value"), [(code(member.name), code(str(member.value))) for member in cls]
    )


def data_model() -> str:
    modules = (module.name for module in pkgutil.iter_modules(sley.ir.__path__))
    found = {name for name in modules if not name.startswith("_")}
    if found != set(MODULES):
        raise UndescribedError(f"MODULES and sley.ir differ in: {sorted(found ^ set(MODULES))}")
    lines = [DATA_MODEL_HEAD]
    for name, title in MODULES.items():
        if title is None:
            continue
        module = importlib.import_module(f"sley.ir.{name}")
        lines += [f"## {title}", "", prose(inspect.getdoc(module) or ""), ""]
        for cls in vars(module).values():
            if not inspect.isclass(cls) or cls.__module__ != module.__name__:
                continue
            if dataclasses.is_dataclass(cls):
                lines += [f"### `{cls.__name__}`", "", *fields_of(cls), ""]
            elif issubclass(cls, Enum):
                lines += [f"### `{cls.__name__}`", "", *members_of(cls), ""]
    return finished(lines)


def rule_section(rule: Rule) -> Iterator[str]:
    yield f"## {rule.code}: {rule.name} {{ #{rule.code} }}"
    yield ""
    yield f"**What it says.** {prose(rule.what)}"
    yield ""
    yield f"**Why.** {prose(rule.why)}"
    yield ""
    yield "**Example.**"
    yield ""
    yield f"```text\n{rule.example}\n```"
    yield ""
    yield f"**Instead.** {prose(rule.instead)}"
    yield ""
    if rule.former:
        yield f"Formerly also {', '.join(rule.former)}."
        yield ""


def error_pages() -> dict[str, str]:
    """The page of each family of rules, and the page that leads to them, by file."""
    rest = all_rules()
    index = [ERRORS_HEAD]
    pages = {}
    for page, (title, text, modules) in FAMILIES.items():
        codes = {
            rule.code
            for name in modules
            for rule in vars(importlib.import_module(f"sley.errors.{name}")).values()
            if isinstance(rule, Rule)
        }
        family = [rest.pop(code) for code in sorted(codes)]
        rows = [(f"[{r.code}](#{r.code})", r.name, cell(r.what)) for r in family]
        lines = [f"# {title}: error codes", "", text]
        lines += table(("code", "name", "what it says"), rows)
        lines.append("")
        for rule in family:
            lines += [*rule_section(rule)]
        pages[f"errors/{page}.md"] = finished(lines)
        links = ", ".join(f"[{r.code} {r.name}]({page}.md#{r.code})" for r in family)
        index += [f"## [{title}]({page}.md)", "", text, "", links, ""]
    if rest:
        raise UndescribedError(f"no family for {', '.join(rest)}")
    return {"errors/index.md": finished(index), **pages}


def nccl_functions() -> str:
    folder = Path(__file__).resolve().parents[1] / "native" / "nccl"
    functions = (folder / "functions.def").read_text("utf-8")
    rows = [
        (code(f"nccl{name}"), since, RUNS[macro])
        for macro, name, since in FUNCTION.findall(functions)
    ]
    fields = [
        (code(name), code(kind), since, FIELDS.get(name, "ignored"))
        for kind, name, since in FIELD.findall((folder / "config.def").read_text("utf-8"))
    ]
    lines = [NCCL_HEAD, *table(("function", "NCCL from", "who runs it"), rows)]
    lines += ["", "## ncclConfig_t"]
    return finished([*lines, *table(("field", "type", "NCCL from", "what sley does"), fields)])


ROOT = Path(__file__).resolve().parents[1]

# The page that shows each file, for links between them.
SHOWN = {
    "README.md": "install.md",
    "examples/README.md": "examples.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
}


def shown(file: str) -> str:
    """The text of a file beside docs/, with the links of a page in docs/."""
    text = (ROOT / file).read_text("utf-8")
    text = re.sub(r"\]\((?:\.\./)?docs/", "](", text)
    for name, page in SHOWN.items():
        text = text.replace(f"]({name})", f"]({page})")
    return text


def install() -> str:
    """The parts of the README from which a reader installs sley and writes a first program."""
    readme = shown("README.md")
    setup = readme.partition("\n## Try it\n")[2].partition("\n## ")[0]
    example = readme[readme.index("```python") :].partition("\n![")[0]
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    head = f"# Install and first minute\n\nVersion {version}; [changes](changes.md)."
    return finished([head, setup, "## The first minute", "", example])


def examples() -> str:
    """The list of the examples, each with its file."""
    lines = [re.sub(r"\]\((\w+)\.py\)", r"](#\1)", shown("examples/README.md"))]
    for path in sorted((ROOT / "examples").glob("*.py")):
        lines += ["", f"## {path.stem} {{ #{path.stem} }}", ""]
        lines += [f'```python title="{path.name}"', path.read_text("utf-8").rstrip(), "```"]
    return finished(lines)


def finished(lines: list[str]) -> str:
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def main(arguments: list[str]) -> None:
    folder = Path(arguments[0]) if arguments else Path(__file__).resolve().parent
    (folder / "errors").mkdir(parents=True, exist_ok=True)
    pages = {
        "data-model.md": data_model(),
        "nccl-functions.md": nccl_functions(),
        "install.md": install(),
        "examples.md": examples(),
        "changes.md": shown("CHANGELOG.md"),
        "contributing.md": shown("CONTRIBUTING.md"),
        **error_pages(),
    }
    for name, content in pages.items():
        (folder / name).write_text(content, "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
