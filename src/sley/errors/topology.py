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
T604 = Rule(
    "T604",
    "unknown-topology",
    what="A topology is asked for by a name that nothing has.",
    why="A name is one of the machines that come with sley, a cluster in numbers, a mesh, a torus "
    "or a file.",
    example="--topology ndv44:2",
    instead="`sley topology list` prints the names; NODESxGPUS[:NICS], mesh:4x4, torus:4x4x4 and "
    "files are understood too.",
)
T605 = Rule(
    "T605",
    "unreadable-topology",
    what="A file of a topology cannot be read: it is not there, too large, or not what it looks "
    "like.",
    why="Machines and graphs are TOML, NCCL's topologies XML without document types, TACCL's "
    "JSON; none of them is large.",
    example="[nvlink\nGBps = 230",
    instead="Mend the file at the place that is named.",
)
T606 = Rule(
    "T606",
    "unknown-key",
    what="A description of a topology has a key that means nothing there.",
    why="A key that is ignored looks like one that counts: GBs = 230 would leave the rate as it "
    "was.",
    example="[nvlink]\nnominal_GB = 300",
    instead="Take the key that was meant, or leave it out; docs/topologies.md lists them all.",
)
T607 = Rule(
    "T607",
    "bad-value",
    what="A description of a topology lacks a key, or a key has a value of the wrong kind.",
    why="Every number of the description counts in bounds and simulations; none is guessed.",
    example='gpus = "eight"',
    instead="Give a value of the kind that is expected.",
)
T608 = Rule(
    "T608",
    "no-such-part",
    what="A description of a topology names a GPU, a card or a PCIe vertex that it doesn't have, "
    "leaves one out, or links one with itself.",
    why="GPUs and cards are numbered from 0 within the node; PCIe vertices are those listed.",
    example="[nvlink]\nlinks = [[0, 8]]  # of 8 GPUs, 0 to 7",
    instead="Mend the number or the name, or add the part.",
)
T609 = Rule(
    "T609",
    "unknown-topology-format",
    what="A file is none of the descriptions of topologies that sley reads.",
    why="sley reads TOML (a machine or a graph), NCCL's topology XML, the output of "
    "`nvidia-smi topo -m`, and TACCL's JSON.",
    example="sley topology show notes.txt",
    instead="Export one of these, or write a machine in TOML; docs/topologies.md has the format.",
)
T610 = Rule(
    "T610",
    "assumed",
    what="A remark: what an imported file leaves open, and what sley took instead.",
    why="Files of other tools describe what is there, seldom how fast it is.",
    example="nvidia-smi says NV12, but no rate: 25 GB/s nominal and 20 GB/s reached a link",
    instead="Import to TOML and write the rates of your machine into it.",
)
