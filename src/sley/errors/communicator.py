"""Rules of the communicator: what may stop ranks that want to work together (N6xx)."""

from sley.errors.diagnostic import Rule

N601 = Rule(
    "N601",
    "rank-missing",
    what="A rank did not come, or did not answer, before the time was over.",
    why="All ranks of a communicator make it together. One that was not started, that ended before "
    "it came here, or that cannot reach the store, keeps all others waiting. Rank 0 collects what "
    "the ranks say; when rank 0 itself is missing, the others know only who else has come.",
    example="RANK=0 WORLD_SIZE=2 python train.py  # and nobody starts rank 1",
    instead="Look at the output of the ranks that are named; start as many processes as there are "
    "ranks; raise timeout_s if they only start slowly.",
)
N602 = Rule(
    "N602",
    "rank-twice",
    what="Two processes have the same rank, in the same communicator.",
    why="Messages for the rank would go to one of the two. It happens when the launcher sets no "
    "ranks, and every process takes the same default; or when a second job uses the first one's "
    "store. A process that was killed may have left its place in a store that outlives it, too.",
    example="RANK=0 WORLD_SIZE=2 python train.py & RANK=0 WORLD_SIZE=2 python train.py",
    instead="Give every process its own rank, from 0 on, and every job a store (a port, a folder) "
    "of its own.",
)
N603 = Rule(
    "N603",
    "wrong-ranks",
    what="The number of ranks is not what the ranks, or the launcher, say; or a rank is not below "
    "it.",
    why="Every rank must know how many there are, and all the same number; otherwise some would "
    "begin while others wait for more.",
    example="RANK=0 WORLD_SIZE=2 python train.py & RANK=1 WORLD_SIZE=4 python train.py",
    instead="Start all processes with one launcher (torchrun, mpirun, srun), or give all of them "
    "the same WORLD_SIZE.",
)
N604 = Rule(
    "N604",
    "ranks-disagree",
    what="Two ranks have different versions of sley, or different settings of the communicator.",
    why="Ranks of a host work in one another's memory, whose layout belongs to the version and the "
    "settings; those of different hosts speak one protocol.",
    example="pip install --upgrade sley  # on one of two hosts",
    instead="Install the same version on every host, and give every rank the same settings and "
    "the same environment.",
)
N605 = Rule(
    "N605",
    "store-failed",
    what="The store, over which the ranks find one another, failed; or it holds something else "
    "than what sley writes.",
    why="A torch store lives in the process that serves it (with torchrun, the agent; otherwise "
    "rank 0), and ends with it. A folder must be one that every rank can write, on a file system "
    "with hard links.",
    example='FolderStore("/read-only")',
    instead="Look whether the process that serves the store still runs; give a folder that all "
    "ranks can write; and give the job a store of its own.",
)
N606 = Rule(
    "N606",
    "no-launcher",
    what="The environment does not say, or says wrongly, which rank this process is, of how many, "
    "and where the others are; or what that takes is not installed.",
    why="torchrun sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which take PyTorch. Open "
    "MPI, MPICH and Slurm start ranks that find one another through MPI, which takes mpi4py.",
    example="python train.py  # instead of torchrun --nproc-per-node 4 train.py",
    instead="Start with torchrun, mpirun or srun, or set RANK, WORLD_SIZE, MASTER_ADDR and "
    "MASTER_PORT; install torch for the former, mpi4py for the latter.",
)
N607 = Rule(
    "N607",
    "no-nic",
    what="SLEY_NICS leaves this host no network interface that is up and has an address.",
    why="Messages between hosts go through the interfaces it names (or, after ^, all but those).",
    example="SLEY_NICS=ib0 torchrun ...  # on a host with eth0 alone",
    instead="Name interfaces that the host has: SLEY_NICS=eth0,eth1 or SLEY_NICS=eth*, or "
    "SLEY_NICS=^docker0; or leave SLEY_NICS out.",
)
N608 = Rule(
    "N608",
    "rank-gave-up",
    what="Another rank could not go on while the communicator was made, and said so.",
    why="One rank's error ends the start of all, at once. The notes hold its own words.",
    example="a rank whose host has no memory left for its segment",
    instead="Mend what the rank in question names, and make the communicator again.",
)
N609 = Rule(
    "N609",
    "rank-ended",
    what="A process of this host ended, or closed its connection, while the communicator was made.",
    why="The ranks of a host hand one another their memory over local connections, which end with "
    "the process. The usual causes are an exception in that rank, a kill from outside, and the "
    "kernel's out-of-memory killer.",
    example="kill -9 <pid of a rank>",
    instead="Look at that rank's output for the cause (`dmesg` names processes killed for memory), "
    "and start again.",
)
N610 = Rule(
    "N610",
    "no-descriptors",
    what="The system gave no socket or descriptor for the connections among the ranks of a host.",
    why="A rank holds descriptors of the memory of all ranks of its host. The limit of descriptors "
    "(ulimit -n) is often 1,024.",
    example="ulimit -n 16; torchrun --nproc-per-node 8 ...",
    instead="Raise the limit (ulimit -n 65536), close what is not needed, or use fewer ranks a "
    "host.",
)
N611 = Rule(
    "N611",
    "no-connection-to-master",
    what="The store at MASTER_ADDR and MASTER_PORT could not be opened: the port is in use, or "
    "nobody answers there.",
    why="Rank 0 serves the store there, unless torchrun does. Another job, or one that has not "
    "quite ended, may hold the port; a firewall or a wrong address keeps others from it.",
    example="MASTER_PORT=29500 for two jobs on one host",
    instead="Choose a free MASTER_PORT (with torchrun: --master-port, or --standalone), and a "
    "MASTER_ADDR at which every host can reach rank 0.",
)
