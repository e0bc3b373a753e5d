"""Languages: how an algorithm is written down. `chunks` is MSCCLang's, `transfers` ResCCL's in
Python, `rescclang` ResCCL's own text."""

from sley.lang import rescclang
from sley.lang.chunks import ChunkProgram, Ref, program, trace

__all__ = ["ChunkProgram", "Ref", "program", "rescclang", "trace"]
