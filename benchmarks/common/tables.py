"""Tables in Markdown, and the texts of times and ratios."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sley import CostModel

MISSING = "-"


def table(
    head: Sequence[object], rows: Iterable[Sequence[object]], *, align_numbers: bool = False
) -> str:
    """A table in Markdown. align_numbers: whether columns of numbers are aligned at the right."""
    rows = list(rows)
    columns = range(len(head))
    right = [align_numbers and all(_is_number(row[i]) for row in rows) for i in columns]
    lines = [head, ["---:" if r else "---" for r in right], *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def parameters(models: Mapping[str, CostModel]) -> str:
    """The parameters in which cost models differ from one another or from the defaults."""
    default = CostModel().items()
    rows = [[text, *(m.items()[name] for m in models.values())] for name, text in default.items()]
    named = zip(default, rows, strict=True)
    shown = [(f"`{name}`", *row[1:]) for name, row in named if len(set(row)) > 1]
    return table(("parameter", *models), shown)


def _is_number(cell: object) -> bool:
    return str(cell).strip("+-% *.0123456789,") == ""


def ms_text(ms: float | None) -> str:
    """A time in ms, with three digits."""
    if ms is None:
        return MISSING
    digits = next((d for d, least in enumerate((100, 10, 1, 0.1, 0.01)) if ms >= least), 5)
    return f"{ms:.{digits}f}"


def ratio_text(ratio: float | None) -> str:
    """A ratio of times, rounded down: 0.999 is not 1.00."""
    return MISSING if ratio is None else f"{int(ratio * 100 + 1e-9) / 100:.2f}"
