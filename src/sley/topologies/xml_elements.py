"""XML elements: a file of XML as a tree of elements, whatever its size and nesting."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

from sley.errors import Place
from sley.errors.topology import T605

_MAX_ELEMENTS = 100_000
_MAX_DEPTH = 64


@dataclass
class XmlElement:
    """An element of XML.

    tag, attributes, text: its name, its attributes, and the text directly inside it.
    line: the line of its beginning.
    children: the elements directly inside it.
    """

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[XmlElement] = field(default_factory=list)
    text: str = ""

    def get(self, name: str) -> str:
        """An attribute; empty without one."""
        return self.attributes.get(name, "")

    def all(self, tag: str) -> Iterator[XmlElement]:
        """This element and its descendants with this tag, in the order of the file."""
        if self.tag == tag:
            yield self
        for child in self.children:
            yield from child.all(tag)


def parse(file: str, text: str) -> XmlElement:
    """The outermost element of XML text. Refuses document types that declare anything, and with
    them entities, so that memory stays bounded. Errors: T605."""
    parser = expat.ParserCreate("utf-8")  # the text is decoded, whatever it declares
    parser.buffer_text = True
    root = XmlElement("", {}, 0)
    path, elements = [root], 0

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal elements
        elements += 1
        if elements > _MAX_ELEMENTS or len(path) > _MAX_DEPTH:
            expected = f"at most {_MAX_ELEMENTS} elements, {_MAX_DEPTH} deep"
            place = Place(file, parser.CurrentLineNumber)
            raise T605.error(at=place, expected=expected, found="more")
        path[-1].children.append(XmlElement(tag, attributes, parser.CurrentLineNumber))
        path.append(path[-1].children[-1])

    def add_text(words: str) -> None:
        path[-1].text += words

    def refuse(name: str, system: str | None, public: str | None, declares: bool) -> None:
        if declares:
            place = Place(file, parser.CurrentLineNumber)
            expected = "XML without declarations in its document type"
            raise T605.error(at=place, expected=expected, found="<!DOCTYPE ... [")

    parser.StartElementHandler = start
    parser.EndElementHandler = lambda _: path.pop()
    parser.CharacterDataHandler = add_text
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(text.encode("utf-8"), True)
    except expat.ExpatError as error:
        place = Place(file, error.lineno, error.offset + 1)
        found = expat.ErrorString(error.code)
        raise T605.error(at=place, expected="well-formed XML", found=found) from error
    return root.children[0]
