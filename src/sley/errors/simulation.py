"""Rules of the simulator: requirements on the input of a simulation (S7xx)."""

from sley.errors.diagnostic import Rule

S701 = Rule(
    "S701",
    "no-topology",
    what="A simulation has no topology.",
    why="Times depend on the rates of links; a plan that was compiled without a topology has none.",
    example='sley.simulate(sley.compile(ring), "64M")',
    instead="Pass a topology to compile or to simulate: sley.topologies.ndv4(), --topology ndv4:2.",
)
S702 = Rule(
    "S702",
    "bad-size",
    what="A size is not a positive number of bytes.",
    why="nccl-tests defines the size: bytes of the larger buffer of a rank; K, M and G are powers "
    "of 1024.",
    example='sley.simulate(plan, "64 apples")',
    instead='Give bytes as an integer, or a text such as "64K", "16M", "1GiB".',
)
S703 = Rule(
    "S703",
    "simulation-stuck",
    what="The simulated blocks wait for one another, and none can continue.",
    why="A plan that hangs has no time. It would hang on GPUs as well.",
    example="sley.simulate(sley.load('hangs.xml'), '1M', topology=sley.topologies.ndv4())",
    instead="Verify the plan first: sley.verify(plan) shows where it hangs.",
)
S704 = Rule(
    "S704",
    "bad-setting",
    what="A setting of the simulator has an invalid value.",
    why="A plan runs with the number of slots for which it was compiled, or more; flags are True "
    "or False.",
    example="sley.simulate(plan, '1M', slots=0)",
    instead="Give one of the expected values, or omit the setting.",
)
S705 = Rule(
    "S705",
    "too-many-executions",
    what="A call would have too many executions to simulate.",
    why="Every instruction runs once for each tile, and the simulator simulates every one of these "
    "executions.",
    example='sley.simulate(plan, "999G")  # with tiles of 32 KiB',
    instead="Use a smaller size, or larger tiles (tile_bytes of the cost model): beyond a few "
    "hundred tiles the bandwidth no longer changes.",
)
S706 = Rule(
    "S706",
    "plan-without-meaning",
    what="A plan to be simulated contradicts itself, or names what does not exist.",
    why="What has no meaning takes no time. Plans that sley compiles or loads are never like this; "
    "those that are put together by hand may be.",
    example="Instructions(..., send_peer=9)  # of a plan for 4 ranks",
    instead="Correct the tables of the plan; sley.verify(plan) names the same places.",
)
