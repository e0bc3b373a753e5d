"""Size: lines of code by room, words of documents, and the counts that a reader has to hold.

    python .ci/size.py [--record]

A table of what git tracks in this checkout, each number beside the one recorded in `size.toml`. It
fails if a number is above its record; --record writes the numbers of today. Whoever raises one says
in the body of the same commit what the growth buys.

Code is lines without blanks, comments and docstrings, so that explaining costs nothing. Classes are
names that two or more classes of the package share. Options are slots: an option that two commands
have counts twice.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RECORD = Path(__file__).with_name("size.toml")
CPP = (".cpp", ".hpp", ".h", ".cu", ".pml")


def tracked(*suffixes: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    paths = (Path(name) for name in listed.stdout.decode().split("\0") if name)
    return [path for path in paths if path.suffix in suffixes and (ROOT / path).is_file()]


def python_lines(text: str) -> int:
    """Lines with a token that is neither a comment nor a docstring (any string that is a statement
    of its own: also the descriptions under constants)."""
    lines: set[int] = set()
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    layout = (tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT)
    starts = True  # of a statement
    for token in tokens:
        if token.type in layout or token.type == tokenize.ENDMARKER:
            starts = starts or token.type in (tokenize.NEWLINE, tokenize.INDENT)
            continue
        if not (starts and token.type == tokenize.STRING):
            lines.update(range(token.start[0], token.end[0] + 1))
        starts = False
    return len(lines)


def cpp_lines(text: str) -> int:
    """Lines that are neither blank nor only a comment."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    return sum(
        bool(line.strip()) and not line.strip().startswith("//") for line in text.split("\n")
    )


def wing(path: Path) -> str:
    """The row of a file in the table."""
    top, *rest = path.parts
    if top == "src" and path.suffix in CPP:
        return "kernel primitives"
    if top == "src":
        return f"sley/{rest[1]}" if len(rest) > 2 else "sley"
    if top == "tests" and rest[0] == "support":
        return "tests/support"
    return top


def lines() -> dict[str, int]:
    """Lines of code of each wing."""
    found: Counter[str] = Counter()
    for path in tracked(".py", *CPP):
        text = (ROOT / path).read_text("utf-8")
        found[wing(path)] += python_lines(text) if path.suffix == ".py" else cpp_lines(text)
    return dict(sorted(found.items()))


def words() -> int:
    """Words of all committed pages."""
    return sum(len((ROOT / path).read_text("utf-8").split()) for path in tracked(".md"))


def shared_class_names() -> int:
    names = Counter(
        node.name
        for path in tracked(".py")
        if path.parts[0] == "src"
        for node in ast.walk(ast.parse((ROOT / path).read_text("utf-8")))
        if isinstance(node, ast.ClassDef)
    )
    return sum(count > 1 for count in names.values())


def option_slots(command: Any) -> int:
    """The options of a command and its subcommands."""
    own = [p for p in getattr(command, "params", ()) if p.param_type_name == "option"]
    below = getattr(command, "commands", {}).values()
    return len(own) + sum(option_slots(one) for one in below)


def counts() -> dict[str, int]:
    """What a reader or user has to hold in mind. Reads the installed package of this checkout."""
    import sley
    from sley.cli.main import main as command
    from sley.errors.catalog import all_rules

    rooms = {path.parts[2] for path in tracked(".py", ".pyi") if path.parts[:2] == ("src", "sley")}
    return {
        "rooms": len(rooms - {"__init__.py", "__main__.py"}),
        "rules": len(all_rules()),
        "options": option_slots(command),
        "names of sley": len(sley.__all__),
        "shared class names": shared_class_names(),
        "words of documents": words(),
    }


def main() -> int:
    found = {"lines": lines(), "counts": counts()}
    if "--record" in sys.argv[1:]:
        text = (
            "# `python .ci/size.py --record` writes this; a commit says why it raises a number.\n"
        )
        for name, rows in found.items():
            text += f"\n[{name}]\n" + "".join(f'"{row}" = {rows[row]}\n' for row in rows)
        RECORD.write_text(text)
    recorded = tomllib.loads(RECORD.read_text())
    above = []
    for name, rows in found.items():
        print(f"{name:22} {'now':>8} {'recorded':>9} {'change':>7}")
        for row in sorted({*rows, *recorded[name]}):
            now, before = rows.get(row, 0), recorded[name].get(row, 0)
            change = f"{now - before:+,}" if now != before else ""
            print(f"{row:22} {now:8,} {before:9,} {change:>7}")
            if now > before:
                above.append(row)
    product = sum(number for row, number in found["lines"].items() if row.startswith("sley"))
    print(f"{'Python of sley':22} {product:8,}")
    if above:
        print(
            f"above the record: {', '.join(above)}: take something away, or record it and say why"
        )
    return bool(above)


if __name__ == "__main__":
    sys.exit(main())
