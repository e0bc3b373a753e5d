"""msccl: runs scripts that are written for msccl-tools, the compiler of the MSCCLang paper, and
collects their programs.

scripts.py      runs a script, while stand-ins for msccl's modules are in place
session.py      what a run has found so far, and the program that is being traced
programs.py     MSCCLProgram, references to chunks, and the chunk language with any number of
                scratch buffers
functions.py    the functions of msccl.language: chunk, Check, XML and others
collectives.py  the collectives, and the base class of a script's own
chunks.py       the chunks that a script's checks see
buffers.py      the names of buffers, and scratch buffers
topologies.py   the topologies
routines.py     the rings of msccl.language.routines
promises.py     a script's collective as a `sley.Collective`; parallel parts of a program
"""

from sley.lang.msccl.scripts import run
from sley.lang.msccl.session import ScriptProgram

__all__ = ["ScriptProgram", "run"]
