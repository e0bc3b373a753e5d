"""Rules of pictures and reports: their contents and their files (P8xx)."""

from sley.errors.diagnostic import Rule

P801 = Rule(
    "P801",
    "picture-too-large",
    what="A picture would have more boxes or lines than people can read.",
    why="Pictures are for small plans: with more than a few hundred boxes the lines between them "
    "can't be followed.",
    example="sley draw ring-allreduce --ranks 32 --of chunks -o ring.svg  # 2976 transfers",
    instead="Draw the algorithm for fewer ranks, which shows the same pattern, or single ranks "
    "with --rank.",
)
P802 = Rule(
    "P802",
    "picture-format",
    what="The name of a picture's file has an unknown suffix.",
    why="The suffix selects the format.",
    example="sley draw ring-allreduce --ranks 4 --of chunks -o ring.jpg",
    instead="Give a name that ends in .svg, .png or .pdf.",
)
P803 = Rule(
    "P803",
    "no-order-to-draw",
    what="Instructions wait for one another in a cycle, so they have no order.",
    why="The picture of the instruction DAG shows the order of execution from left to right; a "
    "plan that hangs has no such order.",
    example="instruction_picture(plan)  # of a plan that was not verified",
    instead="Call sley.verify(plan) to see which instructions wait for one another, and draw the "
    "thread blocks, which need no order.",
)
P810 = Rule(
    "P810",
    "nothing-to-report",
    what="A report has no simulation.",
    why="An empty table, page or plot would look like a result.",
    example="html_report([], title='ring')",
    instead="Pass at least one simulation: sley.simulate(plan, size_bytes).",
)
P811 = Rule(
    "P811",
    "not-comparable",
    what="A comparison has plans of different collectives.",
    why="An AllGather and an AllReduce of the same size do different work, so their ratio has no "
    "meaning.",
    example="sley compare ring-allgather ring-allreduce",
    instead="Compare plans of the same collective.",
)
P812 = Rule(
    "P812",
    "no-executions",
    what="A trace is requested of a simulation without executions.",
    why="A trace lists all executions of each thread block. A simulation keeps them only on "
    "request, because they may be millions of rows.",
    example="trace(sley.simulate(plan, '64MB'))",
    instead="Simulate again and keep them: sley.simulate(plan, size, executions=True).",
)
P813 = Rule(
    "P813",
    "names-dont-fit",
    what="The number of names differs from the number of simulations.",
    why="A curve or a choice under another plan's name is misleading.",
    example="html_report([a, b], title='two', names=['ring'])",
    instead="Give one name for each simulation, or none to use the plans' names.",
)
P804 = Rule(
    "P804",
    "plan-without-meaning",
    what="A plan to be drawn contradicts itself, or names parts that do not exist.",
    why="There is nothing to draw for an operation without a name or a wait for an instruction "
    "that does not exist. Plans that sley compiles or loads are never like this; those that are "
    "put together by hand may be.",
    example="block_picture(plan)  # whose instruction 3 has operation 99",
    instead="Correct the tables of the plan; sley.verify(plan) names the same places.",
)
P805 = Rule(
    "P805",
    "pictures-not-installed",
    what="The package that draws pictures is not installed.",
    why="matplotlib draws pictures and plots. The rest of sley doesn't need it, so it is the extra "
    "`pictures`.",
    example="pip install sley; sley draw ring-allreduce --ranks 4 -o ring.svg",
    instead='Install the extra: pip install "sley[pictures]".',
)
P814 = Rule(
    "P814",
    "no-such-rank",
    what="A rank to be shown or drawn does not exist.",
    why="The ranks of a plan or program are numbered from 0.",
    example="sley.compile(sley.algorithms.ring_allreduce(4)).show(rank=4)",
    instead="Give a rank from 0 to ranks - 1, or none for all.",
)
P815 = Rule(
    "P815",
    "no-such-picture",
    what="A value has no text or picture of this name.",
    why="A plan is drawn as its thread blocks or the graph of its instructions, and shown as its "
    "thread blocks or its sub-pipelines.",
    example='sley.draw(sley.compile(sley.algorithms.ring_allreduce(4)), of="block")',
    instead='Give of="blocks", of="instructions" (draw) or of="pipelines" (show).',
)
