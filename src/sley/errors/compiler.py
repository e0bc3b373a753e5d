"""Rules of the compiler: what a program and its directives may ask of a machine (C3xx)."""

from sley.errors.diagnostic import Rule

C301 = Rule(
    "C301",
    "unlinked-ranks",
    what="A transfer goes between two ranks that the topology does not link.",
    why="There is no connection to carry it; a runtime would fail or fall back silently.",
    example='p.chunk(0, "in", 0).copy(5, "in", 0)  # on a DGX-1: no NVLink there',
    instead="Route through a rank that both are linked to, or compile for another topology.",
)
C302 = Rule(
    "C302",
    "too-many-peers",
    what="A thread block assigned by hand has two send peers or two receive peers.",
    why="A block sends to one peer and receives from one peer, on one channel (MSCCLang 5), so "
    "that two blocks do not serialize over one connection.",
    example="c.copy(1, ..., send_block=0); c.copy(2, ..., send_block=0)",
    instead="Give each (send peer, receive peer, channel) a block of its own, or leave blocks to "
    "the compiler.",
)
C303 = Rule(
    "C303",
    "connection-in-two-blocks",
    what="Transfers over one connection are assigned by hand to different thread blocks.",
    why="A connection has exactly one sending and one receiving block (MSCCLang 5): with two, "
    "messages would arrive in an order that nobody knows.",
    example="c.copy(1, ..., channel=0, send_block=0); d.copy(1, ..., channel=0, send_block=1)",
    instead="Use the same block for the connection, or another channel for the second block.",
)
C304 = Rule(
    "C304",
    "bad-option",
    what="An option of the compiler has a value that means nothing.",
    why="Slots, channels and instances are counted from 1, and no machine has more than some "
    "thousands of them.",
    example="sley.compile(program, slots=0)",
    instead="Give one of the values expected, or leave the option out.",
)
C306 = Rule(
    "C306",
    "out-of-memory",
    what="There is not enough memory for a program or plan of this size.",
    why="Tables grow with the transfers; a ring AllReduce over n ranks has 2 n (n - 1) of them.",
    example="sley compile ring-allreduce --ranks 100000",
    instead="Compile for fewer ranks, fewer instances or coarser chunks, or on a larger machine.",
)
C307 = Rule(
    "C307",
    "wrong-kind",
    what="A function is given a value of another kind than it works on.",
    why="The stages hand over different things: a function becomes a Program by @sley.program, a "
    "Program becomes a Plan by sley.compile, and a Plan is verified, run and saved.",
    example="sley.verify(program)",
    instead="Do the step before first: plan = sley.compile(program).",
)
C308 = Rule(
    "C308",
    "bad-cluster",
    what="A cluster is described by numbers that don't fit together.",
    why="Every node has GPUs, every network card belongs to one node, and the GPUs of a node share "
    "its cards evenly.",
    example="sley.topologies.cluster(nodes=2, gpus=8, nics=3)",
    instead="Give positive numbers, and as many cards as divide the GPUs of a node.",
)
C309 = Rule(
    "C309",
    "options-dont-fit",
    what="Options ask for things that exclude one another, or that a file of that kind has not.",
    why="Instruction order needs whole transfers in one order, which hpds and round-robin make; "
    "fused instructions are in no such order; and blocks given by hand are not the compiler's to "
    "merge.",
    example='sley.compile(program, schedule="msccl", loop_order="instruction")',
    instead="Leave one of the options out, or take the schedule that goes with it.",
)
C305 = Rule(
    "C305",
    "topology-mismatch",
    what="The topology has fewer ranks than the program.",
    why="Every rank of the program needs a GPU.",
    example="sley.compile(ring_16, topology=sley.topologies.dgx1())  # 8 GPUs",
    instead="Take a topology with at least as many ranks.",
)
C310 = Rule(
    "C310",
    "no-size-to-choose-for",
    what="Options are to be chosen by their speed, and nobody says for which size.",
    why="What is fastest for kilobytes is slow for gigabytes: small calls are limited by latency, "
    "large ones by links.",
    example='sley.compile(program, topology=sley.topologies.ndv4(), schedule="auto")',
    instead='Give the size of a call: size_bytes="64M", --size 64M; or let sley.choose make a '
    "table for many sizes.",
)
C311 = Rule(
    "C311",
    "no-topology-to-choose-on",
    what="Options are to be chosen by their speed, and nobody says on which cluster.",
    why="Times follow from the rates of links; without a topology there are none.",
    example='sley.compile(program, schedule="auto", size_bytes="64M")',
    instead="Give a topology: topology=sley.topologies.ndv4(2), --topology ndv4:2.",
)
C312 = Rule(
    "C312",
    "size-not-covered",
    what="A table of choices is asked for a size that it does not cover.",
    why="What is fastest was only looked for from the first to the last of the sizes given.",
    example='sley.choose(program, ["1M", "1G"], topology).plan_for("4K")',
    instead="Choose for sizes that enclose all those that you call with.",
)
C313 = Rule(
    "C313",
    "different-collectives",
    what="The programs to choose among bring about different collectives.",
    why="An AllGather and an AllReduce of one size do different work; the faster one does not "
    "replace the other.",
    example="sley choose ring-allgather ring-allreduce --topology ndv4",
    instead="Choose among programs for one collective on the same ranks, all in place or all out "
    "of place.",
)
C320 = Rule(
    "C320",
    "plan-that-cannot-be-lifted",
    what="A plan to be lifted contradicts itself, or cannot run to its end.",
    why="A program is what a plan does when it runs, from the first message to the last. Where "
    "messages are missing or instructions wait for one another, that is nothing.",
    example="sley.lift(plan)  # whose rank 0 sends twice what rank 1 receives once",
    instead="Prove the plan first: sley.verify(plan) says what is wrong with it.",
)
