"""Canvas: a picture of boxes, lines and texts in inches, and its files."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from html import escape
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from sley.errors import Place
from sley.errors.formats import F460
from sley.errors.report import P801
from sley.errors.runtime import missing_extra
from sley.formats import write_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Point: TypeAlias = tuple[float, float]

METADATA: dict[str, dict[str, str | None]] = {
    ".svg": {"Date": None, "Creator": None},
    ".png": {"Software": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""By the suffix of each format: the metadata without date and version, with which equal pictures
are equal files."""

MAX_BOXES = 400
MAX_LINES = 1600
"""The most lines of a picture; larger pictures can't be read."""

MARGIN = 0.2
"""The width of a picture's margins."""

TEXT_PT = 7.5
SMALL_PT = 6.5
TITLE_PT = 11.0


class Color(StrEnum):
    """Colours that people with any colour vision can tell apart, after Okabe and Ito; the strong
    ones are darker, so that they can be read on white."""

    INK = "#222222"
    GREY = "#767676"
    BAND = "#f4f4f4"
    BLUE = "#0072B2"
    GREEN = "#00795A"
    ORANGE = "#C04F00"
    PURPLE = "#A8457F"
    WHITE = "#ffffff"


_PALE = {
    Color.BLUE: "#d9eaf7",
    Color.GREEN: "#d5efe5",
    Color.ORANGE: "#fbe5cf",
    Color.PURPLE: "#f4deeb",
    Color.GREY: "#ebebeb",
}

_POINTS_PER_INCH = 72
_ADVANCE = 0.602
"""Width of a character of the pictures' fixed-width fonts at a size of 1."""
_HEIGHT = 1.3
"""Distance between lines of text at a size of 1."""

_PNG_DPI = 150
_MAX_PIXELS = 16_000
"""The longest side of a PNG; matplotlib draws up to 2**16."""

_HEAD_LENGTH, _HEAD_WIDTH = 0.075, 0.06

_SETTINGS = {
    "svg.fonttype": "none",
    "font.family": ["monospace"],
    "font.monospace": ["DejaVu Sans Mono", "Liberation Mono", "Menlo", "Consolas", "monospace"],
}


@dataclass(frozen=True)
class Style:
    """The style of one kind of lines.

    word: their name in the legend.
    stroke: "solid" or "dashed".
    port: distance of their ends below the middle of a box's side, in inches.
    """

    word: str
    color: str
    stroke: str = "solid"
    width_pt: float = 0.9
    arrow: bool = True
    port: float = 0.0


@dataclass(frozen=True)
class Fill:
    """The style of one kind of boxes.

    word: their name in the legend.
    """

    word: str
    face: str
    edge: str = Color.INK
    edge_pt: float = 0.7

    @classmethod
    def tinted(cls, word: str, edge: Color) -> Fill:
        """A colour with its pale shade inside."""
        return cls(word, _PALE[edge], edge)


@dataclass(frozen=True)
class Box:
    """A rectangle with lines of text in its middle.

    id: its id in an SVG; empty for a decoration.
    x, y: its upper left corner.
    """

    id: str
    x: float
    y: float
    width: float
    height: float
    fill: Fill
    text: tuple[str, ...] = ()
    size_pt: float = TEXT_PT


@dataclass(frozen=True)
class Line:
    """A line through points.

    id: its id in an SVG.
    curved: whether parts between points of different height are curves.
    """

    id: str
    points: tuple[Point, ...]
    style: Style
    curved: bool = True


@dataclass(frozen=True)
class TextLine:
    """A line of text.

    x, y: the point at middle height of its left end, middle or right end, selected by `align`.
    """

    x: float
    y: float
    text: str
    size_pt: float = TEXT_PT
    align: str = "left"
    color: str = Color.INK
    bold: bool = False


@dataclass(frozen=True, repr=False)
class Picture:
    """A drawing on white: lengths in inches from the upper left corner, sizes of text in points.

    title: its title.
    width, height: its size.
    boxes, lines, texts: its contents; boxes cover lines, and later boxes cover earlier ones.
    grounds: boxes under the lines.
    """

    title: str
    width: float
    height: float
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]
    texts: tuple[TextLine, ...]
    grounds: tuple[Box, ...] = ()

    def __repr__(self) -> str:
        return f"Picture({self.title}: {self.width:.1f} x {self.height:.1f} in)"

    @classmethod
    def heading(cls, title: str, entries: Iterable[Fill | Style]) -> Picture:
        """The title, and below it the legend: a row with a sample and the name of each kind of box
        and line. Its width is the right end."""
        boxes: list[Box] = []
        lines: list[Line] = []
        texts = [TextLine(MARGIN, MARGIN + 0.08, title, TITLE_PT, bold=True)]
        x, y = MARGIN, MARGIN + 0.36
        for entry in entries:
            if isinstance(entry, Fill):
                boxes.append(Box("", x, y - 0.06, 0.22, 0.12, entry))
            else:
                lines.append(Line("", ((x, y), (x + 0.32, y)), entry))
            x += 0.28 if isinstance(entry, Fill) else 0.38
            texts.append(TextLine(x, y, entry.word, SMALL_PT))
            x += text_width(entry.word, SMALL_PT) + 0.22
        width = max(x - 0.22, MARGIN + text_width(title, TITLE_PT))
        return cls(title, width, 0.0, tuple(boxes), tuple(lines), tuple(texts))

    @staticmethod
    def check_size(what: str, boxes: int, words: str, lines: int, remedy: str = "") -> None:
        """Refuses a picture that is too large to read.

        what, words: plural nouns for its boxes and for its lines. Errors: P801.
        """
        for number, most, word in ((boxes, MAX_BOXES, what), (lines, MAX_LINES, words)):
            if number > most:
                expected = f"at most {most} {word}"
                raise P801.error(expected=expected, found=f"{number} {word}", remedy=remedy)

    def joined(self, width: float, height: float, parts: Sequence[Picture]) -> Picture:
        """The picture of a heading with its parts. width, height: of all, without the margins at
        the right and below."""
        every = (self, *parts)
        return Picture(
            self.title,
            width + MARGIN,
            height + MARGIN,
            tuple(box for part in every for box in part.boxes),
            tuple(line for part in every for line in part.lines),
            tuple(text for part in every for text in part.texts),
            tuple(ground for part in every for ground in part.grounds),
        )

    def save(self, path: str | Path) -> None:
        """Writes the picture in the format of the file name's suffix. Errors: F460, F461."""
        suffix = check_suffix(path)
        write_file(path, {".svg": self.svg, ".png": self.png, ".pdf": self.pdf}[suffix]())

    def _repr_html_(self) -> str:
        """An image that shares no names with its page, and is no wider."""
        image = base64.b64encode(self.svg()).decode()
        source = f'src="data:image/svg+xml;base64,{image}"'
        return f'<img alt="{escape(self.title)}" style="max-width:100%" {source}>'

    def svg(self) -> bytes:
        """The picture as SVG: the same bytes for the same picture."""
        return self._render(".svg", _POINTS_PER_INCH)

    def png(self) -> bytes:
        """The picture as PNG: the same bytes for the same picture."""
        return self._render(".png", min(_PNG_DPI, _MAX_PIXELS / max(self.width, self.height)))

    def pdf(self) -> bytes:
        """The picture as PDF: the same bytes for the same picture."""
        return self._render(".pdf", _POINTS_PER_INCH)

    def figure(self) -> Figure:
        """The picture as a figure of matplotlib."""
        with drawing_settings(_SETTINGS):
            return self._figure()

    def _render(self, suffix: str, dpi: float) -> bytes:
        stream = io.BytesIO()
        metadata = {"Title": self.title, **METADATA[suffix]}
        with drawing_settings(_SETTINGS):
            self._figure().savefig(stream, format=suffix[1:], dpi=dpi, metadata=metadata)
        return stream.getvalue()

    def _figure(self) -> Figure:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(self.width, self.height), facecolor=Color.WHITE)
        FigureCanvasAgg(figure)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set_xlim(0, self.width)
        axes.set_ylim(self.height, 0)
        for ground in self.grounds:
            _draw_box(axes, ground, 0)
        for line in self.lines:
            _draw_line(axes, line)
        for box in self.boxes:
            _draw_box(axes, box, 3)
        for text in self.texts:
            _draw_text(axes, text)
        return figure


def require_matplotlib() -> ModuleType:
    """The module matplotlib, which takes a second to import; most commands draw nothing. Errors:
    R512."""
    try:
        import matplotlib
    except ImportError as error:
        raise missing_extra("matplotlib", "pictures", error) from error
    return matplotlib


def check_suffix(path: str | Path) -> str:
    """The suffix of a picture's file name, in lower case. Errors: F460."""
    suffix = Path(path).suffix.lower()
    if suffix not in METADATA:
        raise F460.error(
            at=Place(str(path)),
            expected="a name that ends in .svg, .png or .pdf",
            found=repr(suffix) if suffix else "none",
            remedy="Give a name that ends in .svg, .png or .pdf.",
        )
    return suffix


def text_width(text: str, size_pt: float = TEXT_PT) -> float:
    """The width of a line of text in inches."""
    return len(text) * _ADVANCE * size_pt / _POINTS_PER_INCH


def text_height(lines: int = 1, size_pt: float = TEXT_PT) -> float:
    """The height of lines of text in inches."""
    return lines * _HEIGHT * size_pt / _POINTS_PER_INCH


def box_size(text: Sequence[str]) -> tuple[float, float]:
    """Width and height of a box around lines of text, in inches."""
    widest = max((text_width(line) for line in text), default=0.0)
    return widest + 0.14, text_height(len(text)) + 0.08


@contextmanager
def drawing_settings(own: Mapping[str, Any]) -> Iterator[None]:
    """matplotlib's defaults with these settings, and with those that give equal files; restores the
    user's settings after. Errors: R512."""
    matplotlib = require_matplotlib()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"svg.hashsalt": "sley", "text.parse_math": False, **own})
        yield


def _draw_box(axes: Axes, box: Box, order: int) -> None:
    from matplotlib.patches import Rectangle

    patch = Rectangle(
        (box.x, box.y),
        box.width,
        box.height,
        facecolor=box.fill.face,
        edgecolor=box.fill.edge,
        linewidth=box.fill.edge_pt,
        zorder=order,
    )
    if box.id:
        patch.set_gid(box.id)
    axes.add_patch(patch)
    step = text_height(1, box.size_pt)
    top = box.y + box.height / 2 - step * (len(box.text) - 1) / 2
    for number, line in enumerate(box.text):
        text = TextLine(box.x + box.width / 2, top + number * step, line, box.size_pt, "center")
        _draw_text(axes, text)


def _draw_line(axes: Axes, line: Line) -> None:
    from matplotlib.patches import PathPatch, Polygon
    from matplotlib.path import Path as Outline

    style = line.style
    points = list(line.points)
    (x0, y0), (x1, y1) = points[-2:]
    if style.arrow:
        # A curve ends horizontally, a straight line in its own direction.
        level = line.curved or y0 == y1
        dx, dy = (1.0 if x1 >= x0 else -1.0, 0.0) if level else _direction(x0, y0, x1, y1)
        base = (x1 - dx * _HEAD_LENGTH, y1 - dy * _HEAD_LENGTH)
        side = (-dy * _HEAD_WIDTH / 2, dx * _HEAD_WIDTH / 2)
        corners = [
            (x1, y1),
            (base[0] + side[0], base[1] + side[1]),
            (base[0] - side[0], base[1] - side[1]),
        ]
        axes.add_patch(Polygon(corners, closed=True, color=style.color, linewidth=0, zorder=2))
        points[-1] = base
    vertices, codes = [points[0]], [Outline.MOVETO]
    for (ax, ay), (bx, by) in pairwise(points):
        if line.curved and ay != by:
            middle = (ax + bx) / 2
            vertices += [(middle, ay), (middle, by), (bx, by)]
            codes += [Outline.CURVE4] * 3
        else:
            vertices.append((bx, by))
            codes.append(Outline.LINETO)
    patch = PathPatch(
        Outline(vertices, codes),
        facecolor="none",
        edgecolor=style.color,
        linewidth=style.width_pt,
        linestyle=style.stroke,
        zorder=1,
    )
    if line.id:
        patch.set_gid(line.id)
    axes.add_patch(patch)


def _direction(x0: float, y0: float, x1: float, y1: float) -> Point:
    length = float(((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5)
    return ((x1 - x0) / length, (y1 - y0) / length) if length else (1.0, 0.0)


def _draw_text(axes: Axes, text: TextLine) -> None:
    axes.text(
        text.x,
        text.y,
        text.text,
        fontsize=text.size_pt,
        ha=text.align,
        va="center_baseline",
        color=text.color,
        fontweight="bold" if text.bold else "normal",
        zorder=4,
    )
