"""ResCCLang: ResCCL's own language as text (ResCCL 4.2, appendix B)."""

from sley.lang.rescclang.text import load, parse

__all__ = ["load", "parse"]
