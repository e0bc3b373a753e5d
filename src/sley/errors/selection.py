"""Rules of the selection: errors while a plan is selected for a call (N65x)."""

from sley.errors import Rule

N650 = Rule(
    "N650 no-such-call",
    what="A plan is requested for a call that no communicator offers.",
    why="The kind of the collective, the root and the size select the plan. Sizes are bytes and "
    "not negative, a root is one of the ranks.",
    example='plans.find("allreduce", 1024)',
    instead="Use one of the kinds in the message, with the names of sley.communicator.",
)
N651 = Rule(
    "N651 plan-not-for-this-group",
    what="A registered plan fits no call of this communicator.",
    why="A plan can run for a call with the same collective over the same number of ranks, with "
    "the same root and place. The number of chunks makes no difference.",
    example="plans.register('for-8-ranks.xml')  # in a group of 4",
    instead="Register it in a group with as many ranks, compile the algorithm for this number, or "
    "give in_place and root if the file leaves them open.",
)
N652 = Rule(
    "N652 plan-needs-more, formerly R505",
    what="A plan needs more slots or channels than the communicator's or job's connections have.",
    why="Connections are set up once, at the start. A plan that never hangs with s slots may hang "
    "with fewer: a sender without a free slot waits for a receive that comes later. A plan with "
    "more channels has connections that don't exist.",
    example="plans.register(sley.compile(program, slots=64))",
    instead="Compile the plan for these slots and channels, or start the communicator with more.",
)
N653 = Rule(
    "N653 bad-plan-folder",
    what="The folder of user plans, or its plans.toml, can't be used; or files that `sley exec` "
    "names to NCCL's programs aren't there or are damaged: plans, or kernels of sley-kernels.",
    why="SLEY_PLAN_DIR names a folder. Its files that end in .xml, .resccl or .py, and those whose "
    "content is a plan, a text or a schedule, are plans and programs; plans.toml, a table of plans "
    "(F528), may give them sizes and options, and name algorithms of the library.",
    example='[[plans]]\nwhat = "ring.py"\nmin_byte = "1M"',
    instead="Correct the named entry. For NCCL's programs, start `sley exec` again, or install "
    "sley-kernels of sley's version again.",
)
N654 = Rule(
    "N654 unknown-plan-source",
    what="The registered object is not a plan, a program, or a text that names one.",
    why="A user plan is made of a plan, of a program, or of what sley.load opens: an algorithm of "
    "the library by its name, or a file by its path.",
    example="plans.register(17)",
    instead="Give a sley.Plan, a sley.Program, the name of an algorithm or the path of a file.",
)
N655 = Rule(
    "N655 cache-not-own",
    what="The cache's folder can't be written, belongs to another user, or others can write to it.",
    why="A plan in the cache was proven when it was written, and is not proven again. A user who "
    "can write to the folder could make programs run other plans. So sley uses only a folder of "
    "the user's to which no one else can write; otherwise every process compiles for itself.",
    example="chmod 777 ~/.cache/sley/plans",
    instead="Name a folder of your own in SLEY_CACHE_DIR, or remove the rights of others (chmod "
    "go-w).",
)
N658 = Rule(
    "N658 no-plan-in-order",
    what="With same_bits a plan is given that sums in another order, or there is none.",
    why="Bits of sums depend on their order. With same_bits all plans that sum have one: of each "
    "host the ranks one after another, then the hosts' sums; balanced, a tree of the ranks. It is "
    "proven of every plan.",
    example="comm.plans.register(sley.algorithms.ring_allreduce(comm.ranks))  # with same_bits",
    instead="Take or write an algorithm with that order: `sley verify --order` shows a plan's. Or "
    "leave same_bits out.",
)
