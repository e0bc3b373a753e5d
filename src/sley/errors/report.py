"""Rules of pictures and reports: what can be drawn, and into which files (P8xx)."""

from sley.errors.diagnostic import Rule

P801 = Rule(
    "P801",
    "picture-too-large",
    what="A picture would show more than people can read.",
    why="Pictures are for small plans: with more than some hundreds of boxes the lines between "
    "them can't be followed.",
    example="sley draw ring-allreduce --ranks 32 --of chunks -o ring.svg  # 2976 transfers",
    instead="Draw the algorithm for fewer ranks, which shows the same pattern, or single ranks "
    "with --rank.",
)
P802 = Rule(
    "P802",
    "picture-format",
    what="The name of a file for a picture ends in none of the known formats.",
    why="The end of the name says which format is written.",
    example="sley draw ring-allreduce --ranks 4 --of chunks -o ring.jpg",
    instead="Give a name that ends in .svg or .png.",
)
P803 = Rule(
    "P803",
    "no-order-to-draw",
    what="Instructions wait for one another in a circle, so that none comes first.",
    why="The picture of the instruction graph goes from left to right in the order of execution; "
    "in a plan that hangs there is none.",
    example="instruction_picture(plan)  # of a plan that was not verified",
    instead="Ask sley.verify(plan) which instructions wait for one another, and draw the thread "
    "blocks, which need no order.",
)
P810 = Rule(
    "P810",
    "nothing-to-report",
    what="A report is asked for without a simulation to report.",
    why="A table, page or plot of nothing would look like a result.",
    example="html_report([], title='ring')",
    instead="Give it at least one simulation: sley.simulate(plan, size_bytes).",
)
P811 = Rule(
    "P811",
    "not-comparable",
    what="Plans of different collectives are put side by side.",
    why="An AllGather and an AllReduce of one size do different work; their ratio says nothing "
    "about either.",
    example="sley compare ring-allgather ring-allreduce",
    instead="Compare plans of one collective.",
)
P812 = Rule(
    "P812",
    "no-executions",
    what="A trace is asked for of a simulation that kept no executions.",
    why="A trace is the list of everything that each thread block did; a simulation keeps it only "
    "on demand, since it may have millions of rows.",
    example="trace(sley.simulate(plan, '64MB'))",
    instead="Simulate once more and keep them: sley.simulate(plan, size_bytes, executions=True).",
)
P813 = Rule(
    "P813",
    "names-dont-fit",
    what="There are more or fewer names than simulations to be named.",
    why="A curve or a choice under another plan's name misleads.",
    example="html_report([a, b], title='two', names=['ring'])",
    instead="Give one name for each simulation, or none to use the plans' own.",
)
P804 = Rule(
    "P804",
    "plan-without-meaning",
    what="A plan to be drawn contradicts itself, or names what does not exist.",
    why="There is nothing to draw for an operation without a name or a wait for an instruction "
    "that does not exist. Plans that sley compiles or loads are never like this; those that are "
    "put together by hand may be.",
    example="block_picture(plan)  # whose instruction 3 has operation 99",
    instead="Correct the tables of the plan; sley.verify(plan) names the same places.",
)
