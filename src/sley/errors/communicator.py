"""Rules of the communicator: errors while ranks make a communicator (N60x, N61x)."""

from sley.errors import Rule

N601 = Rule(
    "N601 rank-missing",
    what="A rank did not arrive, or did not answer, before the timeout.",
    why="All ranks create a communicator together. A rank that was not started, that ended before, "
    "or that cannot reach the store keeps all others waiting. Rank 0 collects the reports of the "
    "ranks; if rank 0 itself is missing, the others know only which ranks have arrived.",
    example="RANK=0 WORLD_SIZE=2 python train.py  # without a process for rank 1",
    instead="Look at the output of the named ranks; start as many processes as there are ranks, "
    "which give the communicator one name; raise timeout_s if they only start slowly.",
)
N603 = Rule(
    "N603 wrong-ranks, formerly N602",
    what="The number of ranks differs between ranks, or between the ranks and the launcher; a rank "
    "is not below it; or two processes have the same rank in the same communicator.",
    why="With different numbers some ranks would start while others wait for more, and messages "
    "for a rank would reach only one of two processes. This happens if the launcher sets no ranks "
    "and every process uses the same default, or if a second job uses the first job's store. A "
    "killed process may also have left its entry in a store that outlives it.",
    example="RANK=0 WORLD_SIZE=2 python train.py & RANK=0 WORLD_SIZE=4 python train.py",
    instead="Start all processes with the same launcher (torchrun, mpirun, srun), or give each its "
    "own rank, from 0, and all the same WORLD_SIZE; every job has its own store (a port, a "
    "folder).",
)
N604 = Rule(
    "N604 ranks-disagree, formerly D941",
    what="Ranks have different versions of sley, settings of the communicator, policies, or, on "
    "devices, plans.",
    why="Ranks of a host use one another's memory, laid out by version and settings; ranks of "
    "different hosts must use the same protocol, and all the same plan for a call: a policy is "
    "used only if all ranks have read it, with one SLEY_EXPLORE, on one kind of processor.",
    example="pip install --upgrade sley  # on one of two hosts",
    instead="Install one version on every host; give every rank the same settings and environment.",
)
N605 = Rule(
    "N605 store-failed, formerly N611",
    what="The store through which the ranks find one another could not be opened, failed or didn't "
    "answer, or it contains data that sley did not write.",
    why="A torch store is part of the process that serves it (with torchrun, the agent; otherwise "
    "rank 0, at MASTER_ADDR and MASTER_PORT): it ends with it, and doesn't answer while that "
    "process is stopped. Another job may use the port; a firewall or a wrong address may block it. "
    "Every rank must be able to write to a folder, and its file system must have hard links.",
    example='FolderStore("/read-only")',
    instead="Check that the process that serves the store still runs; give a folder to which all "
    "ranks can write; and give the job its own store.",
)
N606 = Rule(
    "N606 no-launcher",
    what="The environment does not contain this process's rank, the number of ranks and the "
    "address of the others, or contains wrong values; or a required package is not installed.",
    why="torchrun sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which require PyTorch. Open "
    "MPI, MPICH and Slurm start ranks that find one another through MPI, which requires mpi4py.",
    example="python train.py  # instead of torchrun --nproc-per-node 4 train.py",
    instead="Start with torchrun, mpirun or srun, or set RANK, WORLD_SIZE, MASTER_ADDR and "
    "MASTER_PORT; install torch for the former, mpi4py for the latter.",
)
N607 = Rule(
    "N607 no-nic",
    what="SLEY_NICS leaves no network interface of this host that is up and has an address.",
    why="Messages between hosts use the interfaces that it names (after ^, all others).",
    example="SLEY_NICS=ib0 torchrun ...  # on a host that has only eth0",
    instead="Name interfaces of the host: SLEY_NICS=eth0,eth1 or SLEY_NICS=eth*, or "
    "SLEY_NICS=^docker0; or remove SLEY_NICS.",
)
N608 = Rule(
    "N608 rank-gave-up, formerly N626",
    what="Another rank reported an error while the communicator was created, or gave up a call, "
    "after its timeout or because the call was aborted.",
    why="The ranks would wait for one another forever, so one rank's error ends the start or the "
    "call on all ranks. The notes contain its message.",
    example="a rank whose host has no memory left for its segment",
    instead="Look at the named rank's error and correct it; then create the communicator again.",
)
N610 = Rule(
    "N610 no-descriptors",
    what="The system has no sockets, descriptors or threads left for the ranks of a host.",
    why="A process holds a descriptor for each communicator, and two for each other process of its "
    "host; a start needs some more. The limit (ulimit -n) is often 1,024.",
    example="ulimit -n 16; torchrun --nproc-per-node 8 ...",
    instead="Raise the limit (ulimit -n 65536; of threads ulimit -u), or use fewer ranks.",
)
N613 = Rule(
    "N613 ranks-of-several-users",
    what="Ranks of one host run as different users.",
    why="The ranks of a host read one another's memory. A rank accepts no connection of another "
    "user, who could otherwise join the job.",
    example="os.setuid(1234 + rank) in each rank",
    instead="Run all ranks of a host as one user.",
)
