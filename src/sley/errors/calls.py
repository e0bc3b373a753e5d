"""Rules of calls: what may stop ranks of a communicator at work (N62x)."""

from sley.errors.diagnostic import Rule

N620 = Rule(
    "N620",
    "rank-ended",
    what="A rank's process ended during a call, or before it came to it.",
    why="The others need its messages. A rank that waits sees the end of a process of its host, "
    "or of a connection between hosts, within a few hundredths of a second; all ranks then give "
    "up. The usual causes are an exception on that rank, the kernel's out-of-memory killer, or a "
    "limit.",
    example="os._exit(1)  # on rank 1, while the others are in comm.all_reduce(x)",
    instead="Look at the output of the rank that is named. Then close the communicator on all "
    "ranks and make it again, or end the job.",
)
N621 = Rule(
    "N621",
    "call-stalled",
    what="Nothing moved on any rank for `timeout_s`, and this rank's call is not done.",
    why="A rank has not made the call, or its process stands still (stopped, swapped out, in an "
    "endless loop). The notes say what this rank waits for, and which ranks are at an earlier "
    "call.",
    example="if comm.rank == 0:\n    comm.all_reduce(x)  # the others never do",
    instead="Let all ranks make the same calls in the same order. Raise timeout_s if a rank is "
    "only slow: one that writes a checkpoint, say.",
)
N622 = Rule(
    "N622",
    "calls-differ",
    what="Two ranks made different calls: another collective, size, type, reduction, root or plan.",
    why="Every call has a number on each rank. Ranks whose calls of the same number differ would "
    "take one another's messages for what they are not.",
    example="comm.all_reduce(np.ones(10 + comm.rank, np.float32))",
    instead="Look at what the two ranks do, and let all make the same calls in the same order. "
    "Where the calls are the same and only the plan differs, the ranks have different user plans.",
)
N623 = Rule(
    "N623",
    "rank-left",
    what="A rank closed its communicator, while others still wanted to make a call with it.",
    why="A call needs every rank. A rank may close its communicator when all its own calls are "
    "done.",
    example="if comm.rank == 1:\n    comm.close()\ncomm.all_reduce(x)",
    instead="Close the communicator on all ranks after the last call.",
)
N624 = Rule(
    "N624",
    "rank-out-of-reach",
    what="The network doesn't carry anything to a rank of another host any more.",
    why="Its machine, a cable, a switch or a network interface is down, or packets are dropped on "
    "the way. The connection is there, but what was sent is not acknowledged.",
    example="ip link set eth0 down  # on one of the hosts, during a call",
    instead="Look at the network between the two hosts; choose other interfaces with SLEY_NICS.",
)
N625 = Rule(
    "N625",
    "no-memory-for-call",
    what="A rank has no memory for the scratch buffer of a call.",
    why="Some plans keep chunks in a buffer of the engine's own, as large as a part of the data.",
    example="comm.all_to_all(x, x)  # in place, with most of the memory in use",
    instead="Make room, use smaller calls, or call out of place.",
)
N626 = Rule(
    "N626",
    "other-rank-gave-up",
    what="A rank gave up a call, after its timeout or because it was aborted: all others must too.",
    why="A communicator that has failed on one rank has failed on all, or they would wait for "
    "ever.",
    example="# rank 0: timeout_s=1, rank 1: timeout_s=60, and rank 2 does nothing",
    instead="Look at the error of the rank that is named: it says what it waited for.",
)
N627 = Rule(
    "N627",
    "wrong-arrays",
    what="The arrays of a call don't fit it: their sizes, types or layout.",
    why="An engine works on memory without gaps. The gathered array has one part for each rank, "
    "and so has the one that is scattered; all others are of one size.",
    example="comm.all_gather(np.zeros(3), np.zeros(8))  # over 4 ranks",
    instead="Give contiguous arrays (np.ascontiguousarray) of one type, with the sizes that the "
    "message names.",
)
N628 = Rule(
    "N628",
    "hosts-not-connected",
    what="Ranks of different hosts could not connect over the network.",
    why="Every rank listens on a port that the system gives it, on the address of the interface "
    "that it is bound to, and connects to the ranks of other hosts over the same numbered "
    "interface. A firewall between the hosts, interfaces in different networks, or an interface "
    "that only leads to containers stands in the way.",
    example="SLEY_NICS=docker0 torchrun --nnodes 2 train.py",
    instead="Choose the interfaces that lead to the other hosts, in the same order on all of "
    "them: SLEY_NICS=eth0,eth1. Open the ports between the hosts.",
)
N629 = Rule(
    "N629",
    "no-ucx",
    what="UCX was asked for between hosts, and its library can't be used on every rank.",
    why="UCX is not part of sley: it is looked for in Python's packages and in the system. Without "
    "being asked, a communicator falls back to TCP and says so.",
    example="SLEY_NETWORK=ucx torchrun --nnodes 2 train.py",
    instead="Install it on all hosts (pip install libucx-cu12, or the system's libucx0), or leave "
    "SLEY_NETWORK out.",
)
N630 = Rule(
    "N630",
    "failed-before",
    what="A call was made with a communicator, or was still under way, after another call failed.",
    why="A failure leaves messages in the connections, which a later call would take for its own. "
    "So no call goes through any more, and what stopped this one is what stopped the first.",
    example="try:\n    comm.all_reduce(x)\nexcept sley.SleyError:\n    comm.all_reduce(x)",
    instead="Mend what the first error names. Close the communicator on all ranks and make it "
    "again; with PyTorch, destroy the process group on all ranks and make a new one.",
)
N631 = Rule(
    "N631",
    "message-size",
    what="A message from one rank to another is not as large as the memory that receives it.",
    why="A receive takes the first message from its source with its tag, and that must fill it. "
    "Parts of different sizes that all ranks exchange (PyTorch's all_to_all_single with split "
    "sizes) are messages, too: what a rank gives to another must be what that one takes.",
    example="if comm.rank == 0:\n    comm.send(np.ones(10), 1)\nelse:\n"
    "    comm.recv(np.ones(5), 0)",
    instead="Let both ranks use the same size, or tags of their own for messages of each size. For "
    "split sizes: rank a's input split for rank b is rank b's output split for rank a.",
)
N632 = Rule(
    "N632",
    "call-in-a-callback",
    what="A call was waited for, or the communicator closed, where a call's end is told.",
    why="`Work.on_done` runs what it is given in the communicator's own thread, which runs the "
    "calls. While that waits, no call can end.",
    example="work.on_done(lambda: comm.all_reduce(x))",
    instead="Make calls there with is_async=True and don't wait for them, or let a thread of your "
    "own make them.",
)
N633 = Rule(
    "N633",
    "memory-gone",
    what="Memory of a call was gone, or out of reach, while the call was at work.",
    why="The kernel copies large messages straight from one process to the other, and refuses "
    "where the memory at either end has been given back or protected, or the sender no longer "
    "allows it.",
    example="work = comm.all_gather(x, out, is_async=True)\nlibc.munmap(address, length)  # of x",
    instead="Leave the memory of a call alone until the call has ended. With SLEY_CMA=0 the kernel "
    "copies nothing.",
)
