"""Rules of deployment (F501 to F533): what runtimes make of directories of files, why a file
doesn't run for a call (F519 to F524), and the tables of packages."""

from sley.errors import Rule

F501 = Rule(
    "F501 reads-no-plans, formerly F502",
    what="The runtime reads no plans.",
    why="NCCL's and NCCLX's tuners choose only among their own algorithms. RCCL 2.28.3 has its "
    "reader of MSCCL XML switched off, and ignores the variables for it; later versions have none.",
    example="sley doctor plans --target nccl",
    instead="Use a runtime that reads plans: MSCCL++, executor, or RCCL up to 2.27.7 (ROCm 7.2), "
    "or 2.28.3 built with -DENABLE_MSCCL_KERNEL=ON. For NCCL, RCCL and NCCLX, export a policy for "
    "their tuners (sley tune export).",
)
F503 = Rule(
    "F503 nothing-to-read",
    what="A directory or a file doesn't exist, or a directory has no file that the runtime reads.",
    why="No plan runs then. msccl-executor-nccl and RCCL refuse to start if MSCCL_ALGO_DIR doesn't "
    "exist; MSCCL++ continues without a message.",
    example="MSCCL_ALGO_DIR=/opt/plnas",
    instead="Check the path and the names of the files.",
)
F504 = Rule(
    "F504 start-fails, formerly F534",
    what="A file in the directory stops every communicator, or the program that registers it.",
    why="msccl-executor-nccl and RCCL read the first tag of every file in the directory, whatever "
    "its name is, and give up at the first file that they can't read. They skip only "
    "subdirectories. MSCCL++ reads the head of a plan when `register_plans.py` registers it, and "
    "an error there ends the program.",
    example="a README, a backup or a file of another runtime beside the plans",
    instead="Move the file to another directory, or correct it.",
)
F505 = Rule(
    "F505 unfit-file",
    what="The runtime refuses the file's content.",
    why="When a communicator starts, a runtime reads the steps of each file for this number of "
    "ranks. If they are invalid, msccl-executor-nccl and RCCL don't start; msccl ignores the file.",
    example="a thread block with 100 steps; a step with an unknown type",
    instead="Write the file again for this runtime: `sley compile --target` or `sley package`.",
)
F506 = Rule(
    "F506 file-left-out",
    what="The runtime ignores the file, at most with a warning in its log.",
    why="MSCCL++ and msccl skip files that they can't read, and RCCL those that need more channels "
    "than it has. The calls run without the plan.",
    example="a JSON file that is cut off; a plan without `inplace`",
    instead="Write the file again, or correct what the message names.",
)
F507 = Rule(
    "F507 name-not-read, formerly F532",
    what="MSCCL++ doesn't read a file of this name: its default loader has other names, or the "
    "program that registers the folder's plans doesn't name it.",
    why="The default loader reads only the names that are in its source, from the directory "
    "`default` of MSCCLPP_CACHE_DIR, each for one number of ranks and of ranks a node. "
    "`register_plans.py`, which `sley package` writes, names each of its files.",
    example="my_allreduce.json in $MSCCLPP_CACHE_DIR/default, or beside register_plans.py",
    instead="Register the plan from Python (--target mscclpp-python): add it to the table, and "
    "write the package again. Or give it one of the names, if its number of ranks is the name's.",
)
F508 = Rule(
    "F508 registered-for-other-ranks",
    what="A plan's name is registered for another number of ranks than the plan has.",
    why="MSCCL++ compares the ranks of a communicator with those that its source registers for the "
    "name, not with the plan. The plan never runs on its own number of ranks, and on the "
    "registered number MSCCL++ reads past its end.",
    example="allreduce_4nodes_128K_2M.json of MSCCL++: made for 32 ranks, registered for 64",
    instead="Register the plan from Python, for its own number of ranks; remove the file.",
)
F509 = Rule(
    "F509 same-plan-name",
    what="Two plans have the same name.",
    why="MSCCL++ stores plans by the name in the file: the plan registered last replaces the "
    "other. Its executor also caches plans by name, so a program with both runs the wrong one.",
    example='two files with "name": "allreduce"',
    instead="Give every plan its own name.",
)
F510 = Rule(
    "F510 places-mixed",
    what="Plans in place and plans out of place are loaded together.",
    why="MSCCL++ checks only whether the first plan runs in place, and applies this to all plans "
    "of the process. Which plan is first depends on the order of a hash map.",
    example='one file with "inplace": true beside one with "inplace": false',
    instead="Deploy plans of one place only, or call them through a selector of your own.",
)
F511 = Rule(
    "F511 order-unknown",
    what="Several plans match the same calls, and the runtime may run any of them.",
    why="MSCCL++ looks for a plan in the order of a hash map of the plans' names. The order may "
    "differ between builds; if it differs between ranks, they wait for each other forever.",
    example="two AllReduces for 16 ranks, 1K to 64K and 64K to 2M: both match 64K",
    instead="Use ranges that don't overlap: both ends of a range are included.",
)
F512 = Rule(
    "F512 hidden-by-earlier-file, formerly F526",
    what="A file doesn't run for a call, or for some sizes, because an earlier file matches them.",
    why="msccl-executor-nccl, RCCL and msccl take the first file that matches. The first two read "
    "a directory in the order of the names; old versions in the order of the file system.",
    example="01-ring.xml for all sizes before 02-tree.xml for up to 64K",
    instead="Use ranges that don't overlap, or give the file for fewer sizes the earlier name.",
)
F513 = Rule(
    "F513 hole-between-ranges",
    what="Remark: sizes between two ranges have no file.",
    why="The runtime silently runs its own algorithm for them. Both ends of a range are included "
    "in msccl-executor-nccl, RCCL and MSCCL++; in msccl the end is not.",
    example="files for up to 65535 bytes and from 131072 bytes on",
    instead="Move the ends of the ranges, if a plan should run there.",
)
F515 = Rule(
    "F515 ends-process",
    what="A file ends the process, with a signal.",
    why="The runtimes divide by numbers in the file without a test: msccl-executor-nccl and RCCL "
    "by nchunksperloop at every call, MSCCL++ by the chunks of each rank.",
    example='nchunksperloop="0"; "input_chunks": 0',
    instead="Remove the file, or write it again.",
)
F516 = Rule(
    "F516 call-fails",
    what="A call that chooses the file fails.",
    why="The runtime finds the mistake after its choice, and falls back to no other algorithm.",
    example="a thread block of 65 operations for MSCCL++; a fused step for RCCL",
    instead="Write the file again for this runtime.",
)
F517 = Rule(
    "F517 wrong-when-run",
    what="A file runs, and gives wrong results or hangs.",
    why="Runtimes don't check what a plan computes.",
    example="an AllReduce that forgets a chunk",
    instead="`sley verify FILE --target T` names the mistake.",
)
F518 = Rule(
    "F518 too-many-files",
    what="There are more files than the runtime's table has room for.",
    why="msccl ignores the files after the fourth. msccl-executor-nccl and RCCL don't start if "
    "more than 1024 files are for the ranks of a communicator.",
    example="MSCCL_XML_FILES with five files",
    instead="Use fewer ranges.",
)
F519 = Rule(
    "F519 size-not-divisible",
    what="A call's size can't be divided into the plan's chunks.",
    why="msccl-executor-nccl, RCCL and msccl then try the next file, and finally their own "
    "algorithm. MSCCL++ has chosen the plan, and the call ends the process.",
    example="1000 elements with nchunksperloop=16; a size that is no multiple of 16 bytes a chunk",
    instead="Use sizes that the chunks divide, or a plan with fewer chunks.",
)
F520 = Rule(
    "F520 for-other-calls, formerly F521 F522 F523",
    what="A file is for other calls: of another collective, another number of ranks or of ranks a "
    "node, the other place, or other sizes.",
    why="A plan is for one collective and one number of ranks, and in place it overwrites its "
    "input (calls of torch.distributed's all_reduce are in place). Runtimes silently skip a plan "
    "for other calls. The size is that of the largest buffer of any rank, as nccl-tests counts it; "
    "for Gather and Scatter in msccl-executor-nccl and RCCL the size of one rank's part.",
    example='a file of 8 ranks, on 16; minBytes="65536" for a call of 1 KB',
    instead="No action is necessary if another file is for these calls; otherwise write one.",
)
F524 = Rule(
    "F524 other-operation",
    what="The runtime doesn't run plans for this reduction or element type, or runs them wrongly.",
    why="msccl-executor-nccl, RCCL and msccl use plans for sum, prod, min and max. MSCCL++ doesn't "
    "read a plan's reduction: every plan sums, even for calls with another reduction. Its plans "
    "run only for float32, float16, bfloat16, int32, uint32, float8_e4m3fn and float8_e5m2; calls "
    "with other types fail.",
    example="an AllReduce with max, on MSCCL++",
    instead="Use the plan for sums; with MSCCL++, keep other calls away by a selector of your own.",
)
F525 = Rule(
    "F525 impossible-call",
    what="A call is impossible: a collective, type or reduction is unknown, or the size is not a "
    "whole number of elements for each rank.",
    why="The answer for such a call would mean nothing.",
    example="sley doctor plans --collective allgather --size 10 --ranks 4",
    instead="Correct the named value.",
)
F527 = Rule(
    "F527 ranks-choose-differently",
    what="The ranks of a communicator choose different plans for one call.",
    why="For a ReduceScatter in place, the output is the rank's part of the input. MSCCL++ "
    "compares only the start addresses of both buffers, which are equal only on rank 0: rank 0 "
    "looks for a plan in place, the others for one out of place. Then they wait forever.",
    example="a ReduceScatter in place on MSCCL++, with a plan for its ranks and size",
    instead="Deploy plans of ReduceScatter only for programs whose calls are out of place.",
)
F528 = Rule(
    "F528 bad-plan-table",
    what="A table of plans can't be used.",
    why="It is a TOML file with a table [[plans]] for each plan: `what` is an algorithm or a file, "
    "min_bytes and max_bytes are the sizes of its calls (both included), in_place, ranks, nodes, "
    "gpus, nics and root are as on the command line, and options are those of sley.Options. `sley "
    "choose -o`, `sley tune` writes such tables, too.",
    example='[[plan]]\nwhat = "ring-allreduce"',
    instead='Correct the named entry; a plan begins with [[plans]] and what = "ring-allreduce".',
)
F529 = Rule(
    "F529 unproven-file",
    what="sley can't prove a file, and doesn't know how the runtime executes it.",
    why="The file exceeds a limit of sley's own, or has a value whose effect in the runtime is not "
    "known. The runtime may run it correctly.",
    example="an execution plan with more chunks than sley reads (F403)",
    instead="Change what the message names, or test the file with the runtime itself.",
)
F530 = Rule(
    "F530 root-not-compared",
    what="A file with one root also runs for calls with other roots, and gives wrong results.",
    why="No file contains a root, so no runtime compares it with the call's. sley reports a remark "
    "for the file, and a problem for a call with another root.",
    example="a Gather to rank 2, in a program that also gathers to rank 0",
    instead="Use the file only in programs whose calls all have its root.",
)
F531 = Rule(
    "F531 not-the-default-folder",
    what="Remark: MSCCL++'s default loader doesn't read the directory under its name.",
    why="The loader reads only the directory `default` of MSCCLPP_CACHE_DIR, which is by default "
    "~/.cache/mscclpp. If it doesn't exist, MSCCL++ continues without plans and without a warning.",
    example="sley package plans --table table.toml --target mscclpp",
    instead="Name the directory `default`, and set MSCCLPP_CACHE_DIR to its parent directory.",
)
F533 = Rule(
    "F533 taken-as-registered",
    what="Remark: sley doesn't know which files a program registers, and takes all as registered.",
    why="sley reads `register_plans.py` only as `sley package` writes it, and never executes it. "
    "Without it, or if it was changed, any program may register any of the files.",
    example="sley doctor plans --target mscclpp-python, for plans without register_plans.py",
    instead="Write the directory with `sley package`, or compare the answer with the program.",
)
