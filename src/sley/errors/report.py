"""Rules of pictures and reports: their contents and their files (P8xx)."""

from sley.errors import Rule

P801 = Rule(
    "P801 picture-too-large",
    what="A picture would have more boxes or lines than people can read.",
    why="Pictures are for small plans: with some hundreds of boxes the lines can't be followed.",
    example="sley draw ring-allreduce --ranks 32 --of chunks -o ring.svg  # 2976 transfers",
    instead="Draw the algorithm for fewer ranks, which shows the same, or single ones (--rank).",
)
P810 = Rule(
    "P810 unfit-simulations, formerly P813 P812",
    what="A report has no simulation, or another number of names or of lists of changes; or a "
    "trace is requested of a simulation without executions.",
    why="An empty page would look like a result, and a curve under another plan's name misleads. A "
    "simulation keeps its executions only on request, because they may be millions of rows.",
    example="html_report([a, b], title='two', names=['ring'])",
    instead="Pass at least one simulation, sley.simulate(plan, size_bytes), for a trace with "
    "executions=True, and one name for each, or none to use the plans' names.",
)
P815 = Rule(
    "P815 no-such-picture",
    what="A value has no text or picture of this name.",
    why="A plan is drawn as blocks or a graph of instructions, and shown as blocks or pipelines.",
    example='sley.draw(sley.compile(sley.algorithms.ring_allreduce(4)), of="block")',
    instead='Give of="blocks", of="instructions" (draw) or of="pipelines" (show).',
)
