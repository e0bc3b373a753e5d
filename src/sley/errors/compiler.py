"""Rules of the compiler: requirements on a program, its directives and options (C3xx)."""

from sley.errors import Rule

C301 = Rule(
    "C301 unlinked-ranks, formerly L128",
    what="A transfer is between two ranks that the topology does not link; in a script for "
    "msccl-tools, the topology that it passes to MSCCLProgram.",
    why="No connection can carry it; a runtime would fail or silently use another path.",
    example='p.chunk(0, "in", 0).copy(5, "in", 0)  # on a DGX-1: no NVLink there',
    instead="Route it through a rank that is linked to both, or use the topology for which the "
    "program was made (sley import --machine writes the topology of a schedule).",
)
C302 = Rule(
    "C302 unfit-directives, formerly C303",
    what="A program's directives give a thread block two send peers or two receive peers, or a "
    "connection two sending or two receiving blocks.",
    why="A block sends to one peer and receives from one, on one channel, and a connection has one "
    "block at each end (MSCCLang 5): so the messages of a connection have one order.",
    example="c.copy(1, ..., send_block=0); c.copy(2, ..., send_block=0)",
    instead="Give each (send peer, receive peer, channel) its own block, or a second block another "
    "channel, or leave blocks to the compiler.",
)
C304 = Rule(
    "C304 bad-option",
    what="A compiler option has an invalid value.",
    why="Slots, channels and instances count from 1, and no machine has more than some thousands.",
    example="sley.compile(program, slots=0)",
    instead="Give one of the expected values, or omit the option.",
)
C306 = Rule(
    "C306 out-of-memory",
    what="There is not enough memory for a program or plan of this size.",
    why="Tables grow with the number of transfers; a ring AllReduce over n ranks has 2 n (n - 1).",
    example="sley compile ring-allreduce --ranks 100000",
    instead="Compile for fewer ranks, fewer instances or coarser chunks, or on a larger machine.",
)
C307 = Rule(
    "C307 wrong-kind",
    what="A function gets a value of the wrong type.",
    why="Each stage has its own type: @sley.program turns a function into a Program, sley.compile "
    "turns a Program into a Plan, and a Plan can be verified, run and saved.",
    example="sley.verify(program)",
    instead="Call the previous stage first: plan = sley.compile(program).",
)
C308 = Rule(
    "C308 bad-cluster",
    what="The numbers that describe a cluster don't fit together.",
    why="Every node has GPUs, which share its network cards evenly; a card belongs to one node.",
    example="sley.topologies.cluster(nodes=2, gpus=8, nics=3)",
    instead="Give positive numbers, and a number of cards that divides the GPUs of a node.",
)
C309 = Rule(
    "C309 options-dont-fit",
    what="Options exclude one another, or the format of the file does not support them.",
    why="Instruction order needs whole transfers in one order, which only hpds and round-robin "
    "produce; receives that are fused with sends have no such order; and the compiler can't merge "
    "blocks that a program requests.",
    example='sley.compile(program, schedule="msccl", loop_order="instruction")',
    instead="Omit one of the options, or use the schedule that supports it.",
)
C305 = Rule(
    "C305 topology-mismatch",
    what="The topology has fewer ranks than the program.",
    why="Every rank of the program needs a GPU.",
    example="sley.compile(ring_16, topology=sley.topologies.dgx1())  # 8 GPUs",
    instead="Use a topology with at least as many ranks.",
)
C310 = Rule(
    "C310 no-size, formerly F458",
    what="Options are to be chosen by speed, or a plan is written as traces, but no size is given.",
    why="The fastest options for kilobytes are slow for gigabytes: latency limits small calls, "
    "links limit large ones. The messages of a trace have sizes in bytes, a plan none.",
    example='sley.compile(program, topology=sley.topologies.ndv4(), schedule="auto")',
    instead='Give the size of a call: size="64M", --size 64M; or make a table by sley.choose.',
)
C312 = Rule(
    "C312 size-not-covered",
    what="A table of choices does not cover a size.",
    why="The search covered only the range from the first to the last given size.",
    example='sley.choose(program, ["1M", "1G"], topology).plan_for("4K")',
    instead="Choose for sizes whose range includes all sizes of your calls.",
)
C313 = Rule(
    "C313 different-collectives, formerly P811",
    what="The programs or plans to choose from, or to compare, have different collectives, "
    "or numbers of ranks.",
    why="An AllGather and an AllReduce of the same size do different work: the faster one can't "
    "replace the other, and their ratio has no meaning.",
    example="sley choose ring-allgather ring-allreduce --topology ndv4",
    instead="Choose from programs for the same collective on the same ranks, in the same place.",
)
C314 = Rule(
    "C314 no-groups-here, formerly V220",
    what="A program or plan with switches that reduce or multicast has options that exclude them.",
    why="A switch combines messages as soon as they are sent, and adds and copies plain data: a "
    "sum of the flags of LL and LL128 is meaningless, and chunks of varying counts don't "
    "correspond. Only the schedule msccl supports this, with a block for each connection. A "
    "runtime that needs a slot for each chunk (MSCCL) doesn't use such switches.",
    example='sley.compile(sley.algorithms.nvls_allreduce(8), schedule="hpds")',
    instead="Leave the option out, or use Simple or Direct; or compile with switches=False, "
    "--no-switches: then each rank sends and receives messages of its own.",
)
C315 = Rule(
    "C315 no-such-switch",
    what="Ranks that a switch must serve together are on several nodes, or the topology's switches "
    "neither reduce nor multicast.",
    why="A switch combines and copies the messages of the GPUs that are connected to it (NVLink "
    "SHARP, on machines with H100 or later GPUs).",
    example="sley.compile(sley.algorithms.nvls_allreduce(8), topology=sley.topologies.ndv4())",
    instead="Use a topology with such switches, such as dgx_h100_nvls, and groups within a node; "
    "or compile with switches=False, --no-switches.",
)
C316 = Rule(
    "C316 gone",
    what="A command, an option or a name is one that sley had in an earlier version.",
    why="Something else does its work now, which the message names.",
    example="sley run ring-allreduce --device cuda --engine both",
    instead="Use what the message names instead.",
)
C317 = Rule(
    "C317 another-search",
    what="The file with which a search should go on has something else.",
    why="Its times are for other programs, options, sizes, another topology or another sley.",
    example="sley choose allgather --topology ndv4 --resume FILE  # of a search for allreduce",
    instead="Resume the same search, or give a new file.",
)
C320 = Rule(
    "C320 plan-that-cannot-be-lifted",
    what="A plan to lift is contradictory, or can't run to its end.",
    why="The lifted program describes a complete run of the plan, from the first message to the "
    "last. If messages are missing or instructions wait for one another, there is no complete run.",
    example="sley.lift(plan)  # rank 0 sends twice, but rank 1 receives once",
    instead="Verify the plan first: sley.verify(plan) names the mistake.",
)
