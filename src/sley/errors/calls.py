"""Rules of calls: errors during calls of a communicator (N62x)."""

from sley.errors import Rule

N620 = Rule(
    "N620 rank-ended, formerly N609",
    what="A rank's process ended or closed its connection, during a call or before it.",
    why="The other ranks need its messages. A waiting rank notices the end of a process on its "
    "host, or of a connection between hosts, within hundredths of a second; then all ranks give up "
    "the call. Usual causes are an exception, the kernel's out-of-memory killer, or a limit.",
    example="os._exit(1)  # on rank 1, while the others are in comm.all_reduce(x)",
    instead="Look at the output of the named rank. Then close the communicator on all ranks "
    "(PyTorch: destroy_process_group) and make it again, or end the job.",
)
N621 = Rule(
    "N621 call-stalled",
    what="No rank made progress for `timeout_s`, and this rank's call has not ended.",
    why="A rank has not made the call, or its process does not run (stopped, swapped out, in an "
    "endless loop). All ranks name the one that neither moves nor waits, if there is one. The "
    "notes name what this rank waits for, and the ranks that are at an earlier call.",
    example="if comm.rank == 0:\n    comm.all_reduce(x)  # the others never do",
    instead="Make the same calls in the same order on all ranks. Raise timeout_s (PyTorch: the "
    "timeout of init_process_group) if a rank is only slow, as when it writes a checkpoint.",
)
N622 = Rule(
    "N622 calls-differ",
    what="Two ranks made different calls: they differ in collective, size, type, reduction, root "
    "or plan, or in the sizes of several calls that run as one.",
    why="Every call has a number on each rank. If calls with the same number differ, the ranks "
    "would misinterpret one another's messages.",
    example="comm.all_reduce(np.ones(10 + comm.rank, np.float32))",
    instead="Compare the code of the two ranks, and make the same calls in the same order on all "
    "ranks. If the calls are equal and only the plan differs, the ranks have different user plans.",
)
N623 = Rule(
    "N623 rank-left",
    what="A rank closed its communicator before the other ranks made their last call.",
    why="A call needs every rank. A rank may close its communicator after its own calls.",
    example="if comm.rank == 1:\n    comm.close()\ncomm.all_reduce(x)",
    instead="Close the communicator on all ranks after the last call. If the named rank raised an "
    "exception, which closes its communicator, its own output names the cause.",
)
N624 = Rule(
    "N624 rank-out-of-reach",
    what="The network no longer delivers messages to a rank of another host.",
    why="Its machine, a cable, a switch or a network interface is down, or packets are dropped. "
    "The connection is open, but sent data is not acknowledged.",
    example="ip link set eth0 down  # on one of the hosts, during a call",
    instead="Check the network between the two hosts; select other interfaces with SLEY_NICS. A "
    "communicator with replan=True goes on over the interfaces that are left.",
)
N625 = Rule(
    "N625 no-memory-for-call",
    what="A rank has no memory, no addresses or no thread for a call.",
    why="Some plans keep chunks in a buffer of the engine, as large as a part of the data. The "
    "first call of a plan allocates its connections. Arrays of `sley.empty` of other ranks are "
    "mapped when they are first read. The first asynchronous call starts a thread.",
    example="comm.all_to_all(x, x)  # in place, with most of the memory in use",
    instead="Free memory, use smaller calls, or call out of place; or raise the limit of addresses "
    "(ulimit -v) or of threads (ulimit -u).",
)
N627 = Rule(
    "N627 wrong-arrays",
    what="The arrays of a call have wrong sizes, types or layout.",
    why="An engine works on memory without gaps. The gathered array has one part for each rank, as "
    "does the scattered array; all other arrays have the same size.",
    example="comm.all_gather(np.zeros(3), np.zeros(8))  # over 4 ranks",
    instead="Pass arrays as the message describes: contiguous (np.ascontiguousarray), of one type, "
    "and writable where the call writes.",
)
N628 = Rule(
    "N628 hosts-not-connected",
    what="Ranks of different hosts could not connect over the network.",
    why="Every rank listens on a port that the system assigns, at its interface's address, and "
    "connects to the ranks of other hosts over the interface with the same number. A firewall, "
    "interfaces in different networks, or one that only leads to containers prevents this.",
    example="SLEY_NICS=docker0 torchrun --nnodes 2 train.py",
    instead="Select the interfaces that lead to the other hosts, in the same order on all hosts: "
    "SLEY_NICS=eth0,eth1. Open the ports between the hosts.",
)
N629 = Rule(
    "N629 no-ucx",
    what="UCX is requested between hosts, but its library can't be used on every rank.",
    why="UCX is not part of sley; sley looks for it in Python's packages and in the system. "
    "Without this request a communicator uses TCP instead, with a warning.",
    example="SLEY_NETWORK=ucx torchrun --nnodes 2 train.py",
    instead="Install it on all hosts (pip install libucx-cu12, or the system's libucx0), or remove "
    "SLEY_NETWORK.",
)
N630 = Rule(
    "N630 failed-before",
    what="A call was made with a communicator, or had not ended, after another call failed.",
    why="A failure leaves messages in the connections, which a later call would receive as its "
    "own. So every further call fails, with the cause of the first failure.",
    example="try:\n    comm.all_reduce(x)\nexcept sley.SleyError:\n    comm.all_reduce(x)",
    instead="Correct the cause that the first error names. Close the communicator on all ranks and "
    "make it again; with PyTorch, destroy the process group on all ranks and make a new one.",
)
N631 = Rule(
    "N631 sizes-differ, formerly N634",
    what="A message, or a part of a call of varying counts, does not have the size of the memory "
    "that receives it, or the type of its elements.",
    why="A receive takes the first message from its source with its tag, which must fill the "
    "memory with elements of its type. In a call of varying counts (all_to_all_v, all_gather_v; "
    "PyTorch's all_to_all_single with split sizes, all_gather of tensors of different sizes) every "
    "rank passes the counts of its own input and output.",
    example="if comm.rank == 0:\n    comm.send(np.ones(10), 1)\nelse:\n"
    "    comm.recv(np.ones(5), 0)",
    instead="Use the same size and type on both ranks, or different tags for different messages; "
    "where counts aren't known, exchange them first (comm.all_to_all of a count for each rank).",
)
N632 = Rule(
    "N632 call-in-a-callback",
    what="A callback waited for a call, or closed the communicator.",
    why="`Work.on_done` calls its function in the communicator's own thread, which runs the calls. "
    "While this thread waits, no call can end.",
    example="work.on_done(lambda: comm.all_reduce(x))",
    instead="In a callback, make calls with async_op=True and don't wait, or use your own thread.",
)
N633 = Rule(
    "N633 memory-gone, formerly B908",
    what="Memory of a call was freed, resized or became inaccessible during the call.",
    why="The kernel copies large messages directly between processes; it refuses if either end was "
    "freed or protected, or the sender no longer permits it. PyTorch frees the memory of a storage "
    "that is resized, which the call still reads or writes.",
    example="work = comm.all_gather(x, out, async_op=True)\nlibc.munmap(address, length)  # of x",
    instead="Don't free or protect memory before its call has ended. SLEY_CMA=0 makes no such "
    "copies.",
)
N635 = Rule(
    "N635 call-cut-short",
    what="A network interface between hosts failed during a call, which can't be repeated. The "
    "communicator goes on with the interfaces that are left.",
    why="With replan=True the ranks meet again after a failure of the network. They repeat a call "
    "that none of them has finished and whose input is intact on all: one out of place, or a "
    "barrier. In place, a part of the input has become a part of the result.",
    example="comm.all_reduce(x)  # while an interface goes down",
    instead="Restore the call's data, as from a checkpoint, and make further calls: all ranks get "
    "this error for the same calls, but for ranks that have finished them. Calls out of place "
    "(out=) are repeated unless a rank has finished them.",
)
