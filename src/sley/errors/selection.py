"""Rules of the selection of plans: which plan runs for a call (N65x)."""

from sley.errors.diagnostic import Rule

N650 = Rule(
    "N650",
    "no-such-call",
    what="A plan is asked for a call that no communicator has.",
    why="The kind of collective, the root and the size decide which plan runs. Sizes are bytes "
    "from 0 on, a root is one of the ranks.",
    example='plans.find("allreduce", 1024)',
    instead="Use one of the kinds that the message names, with the words of sley.communicator.",
)
N651 = Rule(
    "N651",
    "plan-not-for-this-group",
    what="A plan was registered that no call of this communicator could use.",
    why="A plan runs for a call if it does the same: the same collective over as many ranks, with "
    "the same root, and in place or not, as the call is. In how many chunks it cuts the data makes "
    "no difference.",
    example="plans.register('for-8-ranks.xml')  # in a group of 4",
    instead="Register it where there are as many ranks, compile the algorithm for this number, or "
    "say in_place and root where the file leaves them open.",
)
N652 = Rule(
    "N652",
    "plan-needs-more",
    what="A plan needs more slots or channels than the communicator's connections have.",
    why="A communicator sets up its connections once, when it starts. A plan that was ordered for "
    "more slots may hang with fewer; one with more channels has connections that aren't there.",
    example="plans.register(sley.compile(program, slots=64))",
    instead="Compile the plan for so few slots and channels, or start the communicator with more.",
)
N653 = Rule(
    "N653",
    "bad-plan-folder",
    what="The folder of user plans, or its plans.toml, cannot be used as it is.",
    why="SLEY_PLAN_DIR names a folder. Files in it that end in .xml, .resccl or .py are plans and "
    "programs; plans.toml has a table for each of those that something has to be said about: "
    "min_bytes, max_bytes, in_place, root and options (those of sley.Options).",
    example='["ring.py"]\nmin_byte = "1M"',
    instead="Mend what the message names; the other files of the folder are used meanwhile.",
)
N654 = Rule(
    "N654",
    "unknown-plan-source",
    what="Something was registered that is neither a plan, nor a program, nor a file with one.",
    why="Plans come from MSCCL XML (.xml), programs from ResCCLang (.resccl) and from Python files "
    "(.py) with one function decorated with @sley.program.",
    example='plans.register("ring.json")',
    instead="Give a sley.Plan, a sley.Program, or the path of such a file.",
)
N655 = Rule(
    "N655",
    "cache-not-own",
    what="The folder of compiled plans belongs to somebody else, or others can write to it.",
    why="A plan from the cache was proven when it was written, and is not proven again. Who can "
    "write to the folder could have other programs run something else. So it is used only if it is "
    "the user's own and nobody else can write to it; otherwise every process compiles by itself.",
    example="chmod 777 ~/.cache/sley/plans",
    instead="Take away the rights of others (chmod go-w), or name another folder in "
    "SLEY_CACHE_DIR.",
)
N656 = Rule(
    "N656",
    "wrong-plan-sizes",
    what="The sizes that a user plan is said to be for are no sizes, or no range.",
    why="A user plan runs for calls from min_bytes to max_bytes, both included, counted as "
    "nccl-tests does: the bytes of the largest buffer of any rank. Without them it is for all of "
    "them.",
    example='plans.register("ring.py", min_bytes="1M", max_bytes="64K")',
    instead='Give sizes from 0 on, such as 65536 or "64K", the smaller one first.',
)
