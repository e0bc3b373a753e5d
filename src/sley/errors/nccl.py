"""Rules of NCCL's interface (N701 to N705): errors of programs that call NCCL through sley."""

from sley.errors import Rule

N701 = Rule(
    "N701 no-nccl",
    what="There is no NCCL to which sley's library could pass a program's calls, on this rank or "
    "on another one of the communicator, or NCCL's communicator isn't made yet.",
    why="It is made when all ranks make a call that only NCCL can run, and no stream is captured. "
    "sley looks at SLEY_NCCL_LIBRARY, which is the absolute path of a file and excludes all "
    "others; then where the libraries that are linked with NCCL would find it; then for NCCL's "
    "package beside sley's; then in ldconfig's cache.",
    example="SLEY_NCCL_LIBRARY=libnccl.so.2 sley exec -- python train.py",
    instead="Install NCCL (`pip install nvidia-nccl-cu13`), or give SLEY_NCCL_LIBRARY as the "
    "absolute path of NVIDIA's libnccl.so.2. SLEY_NCCL=eager on all ranks makes NCCL's "
    "communicator with sley's.",
)
N702 = Rule(
    "N702 nccl-too-old",
    what="A program calls a function that its NCCL doesn't have.",
    why="sley's library has all functions up to NCCL 2.32, and passes them on to the NCCL that it "
    "finds. The call returns ncclInvalidUsage.",
    example="ncclCommGrow(...)  // with NCCL 2.28",
    instead="Install a newer NCCL, or name one by SLEY_NCCL_LIBRARY.",
)
N703 = Rule(
    "N703 nccl-handle",
    what="A communicator or a reduction isn't there: it was destroyed, is being made, or belongs "
    "to another communicator or the parent process; or there are too many (65,536 communicators, "
    "32,767 reductions of one).",
    why="sley's library knows its own handles. NCCL would read memory that is no longer a "
    "communicator. The call returns ncclInvalidArgument (too many: ncclSystemError).",
    example="ncclCommDestroy(comm); ncclAllReduce(..., comm, stream);",
    instead="Make calls before the communicator's end, with reductions that were made for it.",
)
N704 = Rule(
    "N704 no-preload",
    what="`sley exec` can't put sley's library in place.",
    why="LD_PRELOAD separates paths by spaces and colons, so no path may have one. The library is "
    "built on Linux only.",
    example='python -m venv "my env"; "my env/bin/sley" exec -- python train.py',
    instead="Install sley on Linux, in a folder without spaces and colons in its path.",
)
N705 = Rule(
    "N705 nccl-arguments",
    what="A program gives a call that sley runs arguments that no rank could run.",
    why="Kernels would read or write other memory than the caller's, or wait for ranks that make "
    "another call. The call returns ncclInvalidArgument, and nothing has begun.",
    example="ncclAllReduce(send, receive, count, ncclNumTypes, ncclSum, comm, stream);",
    instead="Give memory of the communicator's GPU, and a type, reduction, rank and size as NCCL "
    "has them. Other ranks that made the call wait for this one.",
)
