"""MSCCL XML (the MSCCL-IR): reading it into a Plan, and writing a Plan for a named target."""

from sley.formats.msccl_xml.reader import Imported, read, read_with_notes
from sley.formats.msccl_xml.writer import write

__all__ = ["Imported", "read", "read_with_notes", "write"]
