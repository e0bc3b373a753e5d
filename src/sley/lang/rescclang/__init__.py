"""ResCCLang: ResCCL's own language as text (ResCCL 4.2, appendix B).

In the order of processing: `text` reads a text into a `Program`; `lexer`, `parser` and `syntax`;
`header` checks the parameters; `evaluate` runs the statements, with `lanes` for many iterations at
once where `flow` allows it, `arithmetic` for expressions, and a `budget`.
"""

from sley.lang.rescclang.header import NUMBERS, WORDS
from sley.lang.rescclang.text import load, parse

__all__ = ["HEADER", "load", "parse"]

HEADER = (*NUMBERS, *WORDS)
"""The parameters of a text's header."""
