"""Rules of the runtime: errors of runs on processes of this machine (R5xx)."""

from sley.errors import Rule, SleyError

R501 = Rule(
    "R501 rank-died",
    what="A worker process ended while the job still needed it.",
    why="The other ranks would wait for its messages forever. The launcher notices the end of a "
    "process at once, sets the job's abort flag, and every rank returns. The usual causes are a "
    "kill from outside, the kernel's out-of-memory killer (signal 9), or a limit of a container.",
    example="kill -9 <pid of a worker>  # during sley.run(...)",
    instead="Look for the cause of the signal (`dmesg` names processes killed for memory), use "
    "smaller sizes or fewer ranks, and start a new job.",
)
R502 = Rule(
    "R502 plan-stalled",
    what="No rank of the job made progress for `timeout_s`; the listed instructions wait.",
    why="Either the plan hangs: each listed instruction waits for an instruction that in the end "
    "waits for it. Or a process was stopped, or had no core for longer than the timeout. An "
    "instruction can wait only for other instructions, a message or a free slot (docs/machine.md).",
    example="# rank 0: recv from 1, then send to 1; rank 1: recv from 0, then send to 0",
    instead="Call `sley.verify`, which names the cycle, and put the send before the receive, or "
    "the two in different thread blocks. If the plan is proven, raise timeout_s.",
)
R503 = Rule(
    "R503 wrong-buffer",
    what="An input array has a wrong shape, length or type, or there isn't one for each rank.",
    why="The plan defines the length of each rank's input: whole blocks of `count` elements. In "
    "place the array is all of the rank's data, input and output together.",
    example="sley.communicator.jobs.execute(plan, [np.zeros(8), np.zeros(7)])",
    instead="Give one 1-D array per rank, of one type; a rank without input gets an empty one.",
)
R504 = Rule(
    "R504 unsupported-type",
    what="The engine does not support the element type or the reduction.",
    why="It reduces float16, bfloat16, float32, float64, float8_e4m3fn, float8_e5m2, int8, int16, "
    "int32, int64, uint8, uint32 and uint64 with sum, product, min, max, average, and the bitwise "
    "and, or and exclusive or.",
    example='sley.run(plan, [1024], dtype="complex64")',
    instead="Use an operation of sley.ReduceOp, and elements of a type of sley.engine.DATA_TYPES, "
    "also where nothing is reduced on devices: view booleans as uint8, array.view(np.uint8); "
    'NumPy arrays of bfloat16 are uint16 bits with dtype="bfloat16", of float8_e4m3fn and '
    "float8_e5m2 uint8 bits.",
)
R506 = Rule(
    "R506 slot-too-small, formerly N612",
    what="`slot_bytes` is too small: a slot cannot hold one element of every chunk of the plan's "
    "longest message, or messages to other hosts would be tiny.",
    why="A message is one tile of `count` neighbouring chunks and occupies one slot; a tile has at "
    "least one element. A message to another host has a header of 72 bytes and takes a microsecond "
    "or two on both hosts, however small it is: in slots of 64 bytes a call takes a hundred times "
    "as long as in slots of 128 KB.",
    example="sley.run(plan, [1024], slot_bytes=64)  # with a message of 17 chunks",
    instead="Give slot_bytes of at least the longest count times the element's size.",
)
R507 = Rule(
    "R507 no-memory",
    what="The system has no memory for the connections, the buffers or the scratch.",
    why="All of it is allocated before the run, so that a lack of memory is this error and not a "
    "bus error during the run. Connections, and arrays that a caller passes, are shared memory: "
    "containers often have 64 MB of it, in /dev/shm.",
    example="docker run ...  # without --shm-size",
    instead="Use smaller sizes or fewer ranks, fewer slots or smaller slot_bytes (connections take "
    "connections x slots x slot_bytes), or enlarge /dev/shm (docker: --shm-size=1g).",
)
R508 = Rule(
    "R508 unusable, formerly K511 R509",
    what="A job or an executor is used after a call failed or it was closed, or during a call.",
    why="A failure leaves messages in the connections, which a later call would receive as its "
    "own, and counters that differ among the ranks; two calls at once would mix their messages.",
    example="job.close(); job.execute(inputs)",
    instead="Wait for the first call; or start a new job, or make a new executor on all ranks.",
)
R511 = Rule(
    "R511 worker-failed",
    what="The worker processes could not start, or one raised an error of its own.",
    why="Workers start with this interpreter (`sys.executable`) and need the same as the caller: "
    "the package, and memory, descriptors and processes within the limits of the system.",
    example="ulimit -u 10; sley run ...",
    instead="Read the worker's message in the notes; raise the limit that it names (ulimit -n for "
    "descriptors, -u for processes), or use fewer ranks.",
)
R512 = Rule(
    "R512 not-installed, formerly B901 D929 P805 S714 B906",
    what="The compiled engine, or a package for a part of sley, is missing or can't be loaded.",
    why="The engine is a C++ extension that is built when the package is installed: a source tree "
    "without an installed build, or a build for another Python, does not have it. Large packages "
    "are extras: matplotlib draws pictures, SciPy fits topologies, the tuner's agents use "
    "scikit-learn, Gymnasium and stable-baselines3, and sley.torch PyTorch.",
    example="pip install sley; sley draw ring-allreduce --ranks 4 -o ring.svg",
    instead="Install what the message names.",
)
R513 = Rule(
    "R513 rank-silent",
    what="A rank's process is alive, but did not respond within the timeout.",
    why="It was stopped (SIGSTOP, a debugger), or the machine's load left it no core.",
    example="kill -STOP <pid of a worker>",
    instead="Continue the process, reduce the load, or raise timeout_s; then start a new job.",
)
R514 = Rule(
    "R514 bad-setting, formerly S704 V207",
    what="A setting of a run, a simulation or a proof does not exist, or is outside its range.",
    why="Sizes and numbers of elements, iterations, slots and bytes are integers and not negative, "
    "a timeout is positive, flags are True or False, and nothing exceeds the engine's limits. A "
    "plan runs with the number of slots for which it was compiled, or more.",
    example="sley.run(plan, [-1], iterations=0)",
    instead="Give the expected value, or leave the setting out. Sizes and warmup are at least 0, "
    "iterations, slots and slot_bytes at least 1, all of them integers up to 2**62; timeout_s is "
    "above 0, up to a year.",
)


def missing_extra(what: str, extra: str, error: ImportError) -> SleyError:
    """R512 for a package that one of sley's extras has."""
    remedy = f'Install the extra: pip install "sley[{extra}]".'
    return R512.error(expected=what, found=str(error), remedy=remedy)
