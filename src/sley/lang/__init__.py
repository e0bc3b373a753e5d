"""Languages: the ways to write an algorithm.

chunks.py         MSCCLang's language in Python
transfers.py      ResCCL's language in Python
rescclang/        ResCCL's own text
msccl/            scripts for msccl-tools
schedules/        schedules of synthesisers
files.py          the program of a Python file; interpreter.py loads and runs it,
                  deferred.py keeps the programs that could not be traced
recorder.py       what the languages in Python share
"""

from sley.lang import rescclang
from sley.lang.chunks import ChunkProgram, Ref, program, trace

__all__ = ["ChunkProgram", "Ref", "program", "rescclang", "trace"]
