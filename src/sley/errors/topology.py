"""Rules of topologies: what a cluster's description must look like (T6xx)."""

from sley.errors.diagnostic import Rule

T601 = Rule(
    "T601",
    "bad-topology",
    what="The tables of a topology don't fit together.",
    why="GPUs come first among the vertices, a rank each; every link goes between two vertices "
    "that are there.",
    example='sley.Topology("x", vertices, links)  # with a link to vertex 99 of 10',
    instead="Build it with sley.topologies, or mend the row that is named.",
)
T602 = Rule(
    "T602",
    "bad-rate",
    what="A rate, a latency or another parameter of a topology is out of range.",
    why="Times are sizes over rates: a rate of zero never ends, a negative one means nothing.",
    example="nvlink_GBps = 0",
    instead="Give a positive, finite number, in the unit that the name ends in.",
)
T603 = Rule(
    "T603",
    "unlinked-gpus",
    what="Some GPUs of a topology cannot reach others, not even through further GPUs.",
    why="No collective over all ranks can be carried out, and every bound would be infinite.",
    example='sley.Topology.from_links("x", 4, [(0, 1), (2, 3)])',
    instead="Add the links that are missing, or describe the connected part alone.",
)
