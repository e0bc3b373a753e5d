"""Rules of topologies: requirements on the description of a cluster (T6xx)."""

from sley.errors import Rule

T601 = Rule(
    "T601 bad-topology",
    what="The tables of a topology don't fit together.",
    why="GPUs are the first vertices, with a rank each; links join existing vertices.",
    example='sley.Topology("x", vertices, links)  # with a link to vertex 99 of 10',
    instead="Build it with sley.topologies, or correct the named row.",
)
T602 = Rule(
    "T602 bad-rate",
    what="A rate, a latency or another parameter of a topology is out of range.",
    why="Times are sizes divided by rates: zero makes them infinite, a negative one meaningless.",
    example="nvlink_GBps = 0",
    instead="Give a positive, finite number in the unit at the end of the name.",
)
T603 = Rule(
    "T603 unlinked-gpus",
    what="Some GPUs of a topology cannot reach others, not even through other GPUs.",
    why="A collective over all ranks would be impossible, and every bound infinite.",
    example='sley.Topology.from_links("x", 4, [(0, 1), (2, 3)])',
    instead="Add the missing links, or describe only the connected part.",
)
T604 = Rule(
    "T604 unknown-topology",
    what="No topology has this name.",
    why="A name is a machine that sley includes, a cluster as numbers, a mesh, a torus or a file.",
    example="--topology ndv44:2",
    instead="Name a machine that `sley topology list` prints, or give NODESxGPUS[:NICS], mesh:4x4 "
    "or a file.",
)
T605 = Rule(
    "T605 unreadable-topology",
    what="The file of a topology does not exist, is too large, or has another format.",
    why="Machines and graphs are TOML, NCCL's and hwloc's topologies are XML without declarations "
    "of their own, TACCL's are JSON; none of these files is large.",
    example="[nvlink\nGBps = 230",
    instead="Correct the file at the named place.",
)
T607 = Rule(
    "T607 bad-key, formerly T606",
    what="A description of a topology has an unknown key, lacks one, or a value has a wrong type.",
    why="Bounds and simulations use every number of the description; none is guessed. An ignored "
    "key would look like one that has an effect: GBs = 230 would not change the rate.",
    example='gpus = "eight"',
    instead="Correct the named key or value; docs/topologies.md lists the keys and their values.",
)
T608 = Rule(
    "T608 no-such-part",
    what="A topology lacks a GPU, a card or another part that is named, or links one to itself.",
    why="GPUs and cards are numbered from 0 within the node; PCIe vertices are those listed.",
    example="[nvlink]\nlinks = [[0, 8]]  # of 8 GPUs, 0 to 7",
    instead="Correct the number or the name; in a file, or add the part. A machine's topology of "
    "one node has no cards.",
)
T612 = Rule(
    "T612 no-such-forest",
    what="Trees or routes are asked for a collective that they don't serve, for one rank or too "
    "many, with numbers that they can't have, or where transfers don't reach every rank.",
    why="Data goes down the trees of an AllGather, up those of a ReduceScatter, and both ways for "
    "an AllReduce; whole chunks of each rank's data are divided among the trees from it. Packing "
    "takes a maximum flow for each edge of each tree, and routes need a linear program, so the "
    "ranks are limited.",
    example='sley.synthesize("broadcast", "ndv4:2")',
    instead="Name one of these collectives, and give a positive number of chunks.",
)
T613 = Rule(
    "T613 bad-groups",
    what="Groups of ranks that call collectives at the same time don't fit a cluster or one "
    "another, or their plans can't be simulated together.",
    why="A rank is in one group of a call, with others; groups of a grid are all ranks that differ "
    "in one dimension, so its sizes have the number of ranks as their product.",
    example="sley groups tp:allreduce:64M --topology ndv4:2 --grid tp=3,dp=4",
    instead="Give sizes with this product, or groups that name each rank once.",
)
T611 = Rule(
    "T611 known-error",
    what="A remark: predictions for this machine are known to differ strongly from measurements.",
    why="Its rates come from data sheets and other machines; a published table shows longer calls.",
    example="sley simulate ring-allgather --topology mi250x:2 -b 64M",
    instead="Compare plans with one another rather than with a clock, or fit the rates to a table "
    "of your own machine: sley calibrate --from.",
)
