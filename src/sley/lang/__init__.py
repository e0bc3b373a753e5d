"""Languages: the ways to write an algorithm. `chunks` is MSCCLang's language and `transfers`
ResCCL's, both in Python; `rescclang` is ResCCL's own text; `files` finds the program of a Python
file. `recorder`, `arguments` and `memory` serve the languages in Python."""

from sley.lang import rescclang
from sley.lang.chunks import ChunkProgram, Ref, program, trace

__all__ = ["ChunkProgram", "Ref", "program", "rescclang", "trace"]
