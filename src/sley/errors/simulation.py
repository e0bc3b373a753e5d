"""Rules of the simulator: what a question about speed must look like (S7xx)."""

from sley.errors.diagnostic import Rule

S701 = Rule(
    "S701",
    "no-topology",
    what="A plan is to be simulated, and nobody says on which cluster.",
    why="Times follow from the rates of links; a plan that was compiled without a topology has "
    "none.",
    example='sley.simulate(sley.compile(ring), "64M")',
    instead="Give a topology to compile or to simulate: sley.topologies.ndv4(), --topology ndv4:2.",
)
S702 = Rule(
    "S702",
    "bad-size",
    what="A size is no positive number of bytes.",
    why="Sizes are counted as nccl-tests counts them: bytes of the larger buffer of a rank; K, M "
    "and G are powers of 1024.",
    example='sley.simulate(plan, "64 apples")',
    instead='Give bytes as an integer, or a text such as "64K", "16M", "1GiB".',
)
S703 = Rule(
    "S703",
    "simulation-stuck",
    what="The simulated blocks wait for one another, and nothing moves any more.",
    why="A plan that hangs has no time. What stands here would hang on GPUs as well.",
    example="sley.simulate(sley.load('hangs.xml'), '1M', topology=sley.topologies.ndv4())",
    instead="Prove the plan first: sley.verify(plan) says where it hangs.",
)
S704 = Rule(
    "S704",
    "bad-setting",
    what="A setting of the simulator has a value that means nothing.",
    why="A plan runs with the slots that it was ordered for, or more; flags are True or False.",
    example="sley.simulate(plan, '1M', slots=0)",
    instead="Give one of the values expected, or leave the setting out.",
)
S705 = Rule(
    "S705",
    "too-many-executions",
    what="A call would be cut into more executions than can be simulated.",
    why="Every instruction runs once for each tile, and every one of these is simulated.",
    example='sley.simulate(plan, "999G")  # with tiles of 32 KiB',
    instead="Take a smaller size, or larger tiles (tile_bytes of the cost model): beyond some "
    "hundred tiles the bandwidth doesn't change any more.",
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
