"""Languages: how an algorithm is written down. `chunks` is MSCCLang's."""

from sley.lang.chunks import ChunkProgram, Ref, program, trace

__all__ = ["ChunkProgram", "Ref", "program", "trace"]
