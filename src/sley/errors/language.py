"""Rules of the languages: what a program may say (L1xx)."""

from sley.errors.diagnostic import Rule

L101 = Rule(
    "L101",
    "rank-out-of-range",
    what="A rank is named that the collective does not have.",
    why="Ranks count from 0 to ranks - 1. A negative number would silently mean another rank in "
    "Python, so it is refused as well.",
    example='p.chunk(8, "in", 0)  # with 8 ranks',
    instead="Use ranks from 0 to ranks - 1; a ring's neighbour is (rank + 1) % ranks.",
)
L102 = Rule(
    "L102",
    "size-out-of-range",
    what="A number of ranks, chunks, instances or a count is not a positive integer.",
    why="There is nothing to move, and later stages would divide by it.",
    example='p.chunk(0, "in", 0, count=0)',
    instead="Give a positive integer.",
)
L103 = Rule(
    "L103",
    "index-out-of-range",
    what="A chunk index, or index + count, lies outside its buffer.",
    why="The chunk would lie in other memory. Negative indices are refused too: they would mean "
    "another chunk in Python.",
    example='p.chunk(0, "in", 7, count=2)  # the input has 8 chunks',
    instead="Keep 0 <= index and index + count <= the buffer's chunks, and the chunk of a transfer "
    "below those of the data buffer. Scratch grows by use.",
)
L104 = Rule(
    "L104",
    "unknown-buffer",
    what='A buffer is neither "in", "out" nor "scratch".',
    why="A rank has these three buffers (MSCCLang 3.1).",
    example='p.chunk(0, "tmp", 0)',
    instead='Use "in", "out" or "scratch".',
)
L105 = Rule(
    "L105",
    "uninitialized-chunk",
    what="A chunk is read that nothing has written.",
    why="Output and scratch hold no data at the start (MSCCLang 3.1), nor does an input that the "
    "collective gives none.",
    example='p.chunk(0, "scratch", 0)  # before anything was copied there',
    instead="Copy something to the place first, or read another place.",
)
L106 = Rule(
    "L106",
    "stale-reference",
    what="A reference is used after its place has been overwritten.",
    why="Only the latest reference to a place may be used (MSCCLang 3.3): it makes programs free "
    "of data races by construction.",
    example='c = p.chunk(0, "in", 0); c.reduce(d); c.copy(1, "in", 0)  # c is from before',
    instead="Use the reference that the overwriting copy or reduce returned, or ask p.chunk again.",
)
L107 = Rule(
    "L107",
    "unequal-counts",
    what="Two references that are to be reduced have different counts or lengths.",
    why="Reduction is chunk by chunk (MSCCLang 3.3).",
    example='p.chunk(0, "in", 0, count=2).reduce(p.chunk(1, "in", 0))',
    instead="Take references of the same count and of the same number of ranks.",
)
L108 = Rule(
    "L108",
    "overlapping-ranges",
    what="A local copy or reduce whose source and destination share chunks.",
    why="Its result would depend on the order in which its elements are moved; on a GPU it hangs "
    "or reads half-written data. In place, input and output are the same memory.",
    example='p.chunk(0, "in", 0, count=2).copy(0, "in", 1)',
    instead="Copy through scratch, or move chunk by chunk.",
)
L109 = Rule(
    "L109",
    "dependent-elements",
    what="Elements of one array operation touch the same place, and at least one writes it.",
    why="An array operation stands for transfers that have no order among themselves.",
    example='p.chunk([0, 0], "in", [0, 0]).copy([1, 1], "in", [0, 0])',
    instead="Write the dependent elements as operations of their own, one after the other.",
)
L110 = Rule(
    "L110",
    "foreign-reference",
    what="A reference of another program, or no reference at all, is given to an operation.",
    why="A reference names a place in the memory of its own program.",
    example="c.reduce(None)",
    instead="Pass what p.chunk, copy or reduce of this program returned.",
)
L111 = Rule(
    "L111",
    "bad-directive",
    what="A channel, thread block or number of instances is not a non-negative integer.",
    why="Directives (MSCCLang 5.1) name hardware resources by number.",
    example='c.copy(1, "in", 0, channel=-2)',
    instead="Give channels and blocks from 0, instances from 1, or leave them to the compiler.",
)
L112 = Rule(
    "L112",
    "bad-argument",
    what="An argument is of a kind that the operation does not take.",
    why="Ranks, indices and counts are integers, or arrays of integers of one length.",
    example='p.chunk("0", "in", 0)',
    instead="Give integers, or arrays of integers that broadcast to one length.",
)
L113 = Rule(
    "L113",
    "empty-program",
    what="A file or function describes no program where one is needed.",
    why="There is nothing to compile.",
    example="an empty my_algo.py",
    instead="Decorate a function with @sley.program(collective).",
)
L116 = Rule(
    "L116",
    "misaligned-block",
    what="A custom collective cuts a block into several chunks and promises in one of them what "
    "comes from another position of its block.",
    why="A call's element count need not be divisible by the chunks; some chunks of a block then "
    "have one element more than others, so only whole blocks can change places.",
    example='sley.Custom("swap", 2, 2, 2, lambda r, i: [(r, 1 - i)], chunks=2)',
    instead="Leave chunks at 1: every chunk is then a block, and count is what one chunk holds.",
)
L118 = Rule(
    "L118",
    "standard-name",
    what="A custom collective has the name of a standard one and promises something else.",
    why="Proofs, files, bus bandwidths and the plans of a communicator go by that name.",
    example='sley.Custom("allreduce", 4, 4, 4, lambda rank, index: None)',
    instead="Give it a name of its own, or use the standard collective.",
)
L114 = Rule(
    "L114",
    "program-raised",
    what="The Python file that describes the program cannot be read, or raises an error.",
    why="The program is what the file's code says while it runs; here it stopped before the end.",
    example="a misspelt name, or an index outside a list, in my_algo.py",
    instead="Mend the line that is named; python my_algo.py shows the whole traceback.",
)
L115 = Rule(
    "L115",
    "which-program",
    what="A Python file holds several programs and none is named, or one that it doesn't hold.",
    why="One program is compiled at a time.",
    example="sley compile algorithms.py  # with two programs inside",
    instead="Name it: sley compile algorithms.py:ring",
)
L117 = Rule(
    "L117",
    "no-such-file",
    what="The Python file that is to describe the program is not there, or is no file.",
    why="There is nothing to read.",
    example="sley compile my_algo.py  # in another folder",
    instead="Give the path of a Python file, or the name of an algorithm that `sley list` prints.",
)
L122 = Rule(
    "L122",
    "conflicting-transfers",
    what="Two transfers of one step touch the same chunk of a rank, and one of them writes it.",
    why="Steps order transfers (ResCCL 4.2); those of one step have no order among themselves, so "
    "the result would depend on timing. Transfers that wait for one another in a circle, such as "
    "a swap of two chunks in one step, are of this kind.",
    example='p.transfer(1, 0, 0, 5, "rrc"); p.transfer(2, 0, 0, 5, "rrc")  # both into chunk 5',
    instead="Give the later one a greater step, or another chunk.",
)
L123 = Rule(
    "L123",
    "two-languages",
    what="A program uses both p.chunk and p.transfer.",
    why="The chunk language orders operations as they are said, the transfer language by their "
    "steps; together they would have no order.",
    example='p.chunk(0, "in", 0).copy(1, "in", 0); p.transfer(1, 2, 0, 0, "recv")',
    instead="Say the whole program in one of them.",
)
L124 = Rule(
    "L124",
    "bad-transfer",
    what="A transfer goes from a rank to itself, has a negative step, or a type other than recv "
    "and rrc.",
    why="A transfer moves one chunk from a rank to another at a step (ResCCL 4.2), and there "
    "overwrites it (recv) or is reduced into it (rrc, recvReduceCopy).",
    example='p.transfer(0, 0, 0, 3, "send")',
    instead='Name two ranks, a step from 0, and "recv" or "rrc".',
)
L125 = Rule(
    "L125",
    "no-data-buffer",
    what="A program of transfers is written for a collective that has no common buffer.",
    why="A transfer names one chunk id for source and destination: a place in the buffer that is "
    "input and output in place (ResCCL 4.2, DataBuffer).",
    example="transfers for an AllToAll out of place",
    instead="Write it in place, or with p.chunk.",
)
L120 = Rule(
    "L120",
    "unknown-algorithm",
    what="An algorithm is asked for by a name that the library does not have.",
    why="There is nothing to build; a guess might run another collective.",
    example='sley.algorithms.build("ring", ranks=8)',
    instead="Use a name that `sley list` prints.",
)
L121 = Rule(
    "L121",
    "unsupported-size",
    what="An algorithm is asked for on a number of ranks that it cannot serve.",
    why="Some algorithms pair ranks off, or are made for one machine; all need two ranks to have "
    "anything to send.",
    example='sley.algorithms.build("recursive-doubling-allgather", ranks=6)',
    instead="Use a number of ranks that the algorithm supports, or an algorithm for this number.",
)
