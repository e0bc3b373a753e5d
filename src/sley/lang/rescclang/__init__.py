"""ResCCLang: ResCCL's own language as text (ResCCL 4.2, appendix B).

In the order of processing: `text` reads a text into a `Program`, and checks its header's
parameters; `parser` makes statements of it, which `evaluate` runs.
"""

from sley.lang.rescclang.text import NUMBERS, WORDS, load, parse

__all__ = ["HEADER", "load", "parse"]

HEADER = (*NUMBERS, *WORDS)
"""The parameters of a text's header."""
