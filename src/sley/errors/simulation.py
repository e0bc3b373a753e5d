"""Rules of the simulator: requirements on the input of a simulation (S7xx)."""

from sley.errors import Rule

S701 = Rule(
    "S701 no-topology, formerly C311",
    what="A simulation, or a choice of options by speed, has no topology.",
    why="Times depend on the rates of links, which only a topology has.",
    example='sley.simulate(sley.compile(ring), "64M")',
    instead="Pass a topology to compile, choose or simulate: topology=sley.topologies.ndv4(2), "
    "--topology ndv4:2.",
)
S702 = Rule(
    "S702 bad-size, formerly N656",
    what="A size is not a positive number of bytes, or the sizes for a user plan are no range.",
    why="nccl-tests defines the size: bytes of the larger buffer of a rank; K, M and G are powers "
    "of 1024. A user plan runs for calls from min_bytes to max_bytes, both included.",
    example='sley.simulate(plan, "64 apples"); plans.register(ring, min_bytes=2, max_bytes=1)',
    instead='Give bytes as an integer, or a text such as "64K", "16M", "1GiB"; the smaller first.',
)
S705 = Rule(
    "S705 too-many-executions, formerly F459",
    what="A call would have too many executions to simulate, or its traces too many nodes.",
    why="Every instruction runs once for each tile: each of these executions is simulated, or "
    "written as a node that a simulator would execute.",
    example='sley.simulate(plan, "999G")  # with tiles of 32 KiB',
    instead="Use a smaller size, or larger tiles (tile_bytes of the cost model): beyond a few "
    "hundred tiles the bandwidth no longer changes.",
)
S710 = Rule(
    "S710 not-nccl-tests, formerly S711",
    what="A file is not the output of nccl-tests or rccl-tests, has no table, or has a row that "
    "does not fit its columns or contradicts itself.",
    why="A topology is calibrated to measured times; they are rows with a size, a number of "
    "elements, a type and times. A fit to a wrong time would make every prediction wrong.",
    example="sley calibrate --from plan.xml --topology ndv4 -o here.toml",
    instead="Give a file with the rows of all_reduce_perf or another of the tests, as they were "
    "printed, without damaged ones: a fit needs only a small size, a large one and one between. "
    "Without the # lines, --topology tells the ranks, and --collective the test.",
)
S712 = Rule(
    "S712 failed-measurement",
    what="A test of nccl-tests reported an error or wrong results.",
    why="The time of a failed call doesn't describe the machine.",
    example="Test NCCL failure common.cu:958; a row with 3 in the column #wrong",
    instead="Repair the machine or the run, and measure again; or remove the wrong rows.",
)
S713 = Rule(
    "S713 unsuitable-table",
    what="A table can't be compared with plans on the topology.",
    why="The times must be those of a collective that sley models as NCCL runs it, with the "
    "topology's number of ranks, and with sizes at both ends of the range. If even a fit misses "
    "half of them by far, they are those of another machine, and its numbers would describe none.",
    example="a table of 16 ranks for a topology of 8; broadcast_perf; a table with one size",
    instead="Name the topology that was measured with --topology, and the collective with "
    "--collective if the table does not name it; a table of another collective can't be used.",
)
