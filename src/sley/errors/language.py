"""Rules of the languages: requirements on programs (L1xx)."""

from sley.errors import Rule

L101 = Rule(
    "L101 rank-out-of-range, formerly P814",
    what="A rank does not exist in the collective, program or plan.",
    why="Ranks count from 0. In Python a negative number would silently mean another rank.",
    example='p.chunk(8, "in", 0)  # with 8 ranks',
    instead="Use ranks from 0 to ranks - 1; a ring's neighbour is (rank + 1) % ranks.",
)
L102 = Rule(
    "L102 bad-number, formerly L111",
    what="A number of ranks, chunks, instances or a count is not a positive integer; or a channel, "
    "a lane or a thread block is negative or too large.",
    why="It leaves no data to move, or identifies no resource (MSCCLang 5.1); stages divide by it.",
    example='p.chunk(0, "in", 0, count=0)',
    instead="Give positive integers; give channels and blocks of at least 0, or leave them to the "
    "compiler.",
)
L103 = Rule(
    "L103 index-out-of-range",
    what="A chunk index, or index + count, is outside its buffer.",
    why="The chunk would be in other memory, or for a negative index, as in Python, another chunk.",
    example='p.chunk(0, "in", 7, count=2)  # the input has 8 chunks',
    instead="Keep index at 0 or above, and index + count within the buffer's chunks; a transfer's "
    "chunk must be one of the data buffer's chunks. Scratch grows with its use, up to 2^26 chunks "
    "in all scratch buffers of all ranks.",
)
L104 = Rule(
    "L104 unknown-buffer",
    what='A buffer is neither "in", "out" nor "scratch"; in a script for msccl-tools, nor a '
    "scratch buffer to which the script has copied data.",
    why="A rank has these three buffers (MSCCLang 3.1). A script for msccl-tools may have any "
    "number of scratch buffers; the first copy to one creates it.",
    example='p.chunk(0, "tmp", 0)',
    instead='Use "in", "out" or "scratch"; in a script, a name to which it has copied data.',
)
L105 = Rule(
    "L105 uninitialized-chunk",
    what="A chunk is read before anything is written to it.",
    why="At the start only inputs to which the collective assigns data have any (MSCCLang 3.1).",
    example='p.chunk(0, "scratch", 0)  # before anything was copied there',
    instead="Copy data to the place first, or read another place.",
)
L106 = Rule(
    "L106 stale-reference",
    what="A reference is used after its place was overwritten.",
    why="Only a place's latest reference may be used (MSCCLang 3.3), which excludes data races.",
    example='c = p.chunk(0, "in", 0); c.reduce(d); c.copy(1, "in", 0)  # c is stale',
    instead="Use the reference that the overwriting copy or reduce returned, or call p.chunk "
    "again.",
)
L107 = Rule(
    "L107 unequal-counts",
    what="Two references of a reduction have different counts or lengths.",
    why="A reduction works chunk by chunk (MSCCLang 3.3).",
    example='p.chunk(0, "in", 0, count=2).reduce(p.chunk(1, "in", 0))',
    instead="Use references with equal counts and equal numbers of ranks.",
)
L108 = Rule(
    "L108 overlapping-ranges",
    what="The source and the destination of a local copy or reduce share chunks.",
    why="The result would depend on the order in which the elements move; on a GPU the operation "
    "hangs or reads half-written data. In place, input and output are the same memory.",
    example='p.chunk(0, "in", 0, count=2).copy(0, "in", 1)',
    instead="Copy through scratch, or one chunk at a time.",
)
L109 = Rule(
    "L109 dependent-elements",
    what="Elements of one array operation access the same place, and at least one writes it.",
    why="The transfers of an array operation have no order among themselves.",
    example='p.chunk([0, 0], "in", [0, 0]).copy([1, 1], "in", [0, 0])',
    instead="Write the dependent elements as separate operations, one after another.",
)
L110 = Rule(
    "L110 foreign-reference",
    what="An operation gets a reference to another program's chunk, or no reference at all.",
    why="A reference identifies a place in the memory of its own program.",
    example="c.reduce(None)",
    instead="Pass a reference that p.chunk, copy or reduce of this program returned.",
)
L112 = Rule(
    "L112 bad-argument",
    what="An argument has a type that the operation does not accept.",
    why="Ranks, indices and counts are integers, or arrays of integers of equal length.",
    example='p.chunk("0", "in", 0)',
    instead="Give integers, or arrays of integers that broadcast to one length.",
)
L116 = Rule(
    "L116 misaligned-block",
    what="A custom collective divides a block into several chunks, and one of them must have data "
    "from another position of its block.",
    why="A call's element count need not be divisible by the number of chunks. Then some chunks of "
    "a block have one element more than others, so only whole blocks can change places.",
    example='sley.Custom("swap", 2, 2, 2, lambda r, i: [(r, 1 - i)], chunks=2)',
    instead="Leave chunks at 1: then every chunk is a block, and count a number of elements.",
)
L118 = Rule(
    "L118 standard-name, formerly V209",
    what="A collective has the name of a standard one, but another postcondition.",
    why="Proofs, files, bus bandwidths and communicators identify a collective by its name.",
    example='sley.Custom("allreduce", 4, 4, 4, lambda rank, index: None)',
    instead="Give it another name, or use the standard collective.",
)
L119 = Rule(
    "L119 varying-collective, formerly L135 V218 V217",
    what="A collective of varying counts is in place, belongs to a one-sided plan, or is neither "
    "AllToAllV nor AllGatherV; or a program or plan of one reduces.",
    why="In place one part overwrites another, which may be longer: nothing would mark where it "
    "ends. The counts of two chunks may differ, and then their elements don't correspond.",
    example="sley.AllToAllV(8, in_place=True); p.chunk(...).reduce(...)  # for sley.AllGatherV(8)",
    instead="Use sley.AllToAllV or sley.AllGatherV, different memory for input and output, and "
    "only copies; or a collective of equal counts.",
)
L114 = Rule(
    "L114 program-raised, formerly L131",
    what="The Python file with the program cannot be read, raises an error, or ends by sys.exit; "
    "only a script for msccl-tools may exit, with code 0.",
    why="The file's code defines the program while it runs; here it stopped before the end.",
    example="a misspelt name, or an index outside a list, in my_algo.py",
    instead="Correct the named line; python my_algo.py shows the whole traceback.",
)
L115 = Rule(
    "L115 which-program, formerly L113",
    what="A file or a function has no program, or several and none, or a missing one, is selected.",
    why="sley compiles one program at a time.",
    example="sley compile algorithms.py  # with two programs inside; an empty my_algo.py",
    instead="Decorate a function with @sley.program(collective), or select one: algorithms.py:ring",
)
L122 = Rule(
    "L122 conflicting-transfers",
    what="Two transfers of a step access the same chunk of a rank, and at least one writes it.",
    why="Steps order transfers (ResCCL 4.2). Transfers of the same step have no order, so the "
    "result would depend on timing. This includes transfers that wait for one another in a cycle, "
    "such as a swap of two chunks in one step.",
    example='p.transfer(1, 0, 0, 5, "rrc"); p.transfer(2, 0, 0, 5, "rrc")  # both into chunk 5',
    instead="Give the later one a greater step, or use another chunk.",
)
L123 = Rule(
    "L123 two-languages",
    what="A program uses both p.chunk and p.transfer.",
    why="The order of the lines orders the operations of the chunk language, the steps order "
    "transfers; a mixture would have no order.",
    example='p.chunk(0, "in", 0).copy(1, "in", 0); p.transfer(1, 2, 0, 0, "recv")',
    instead="Write the whole program in one of the two languages.",
)
L124 = Rule(
    "L124 bad-transfer, formerly L125",
    what="A transfer is from a rank to itself, has a negative step, or is neither recv nor rrc; or "
    "the program's collective has no data buffer.",
    why="A transfer moves one chunk from a rank to another at a step (ResCCL 4.2), where it "
    "overwrites a chunk (recv) or is reduced into it (rrc, recvReduceCopy). Its chunk is a place "
    "in the data buffer, which in place is both input and output.",
    example='p.transfer(0, 0, 0, 3, "send"); transfers for an AllToAll out of place',
    instead='Give two different ranks, a step of at least 0, and "recv" or "rrc"; write the '
    "program in place, or with p.chunk.",
)
L120 = Rule(
    "L120 unknown-algorithm",
    what="No algorithm of the library has this name.",
    why="A guess might build an algorithm for another collective.",
    example='sley.algorithms.build("ring", ranks=8)',
    instead="Use a name that `sley list` prints.",
)
L121 = Rule(
    "L121 unsupported-size",
    what="An algorithm does not support this number of ranks.",
    why="Some algorithms pair ranks, or are made for one machine; all need at least two ranks.",
    example='sley.algorithms.build("recursive-doubling-allgather", ranks=6)',
    instead="Use a number of ranks that the algorithm supports, or an algorithm for this number.",
)
L136 = Rule(
    "L136 incomplete-ring",
    what="An order of a ring is not a list of all ranks, each of them once.",
    why="Every rank needs the data of all others; a ring brings none to a rank that it leaves out.",
    example="sley.algorithms.multi_ring_allreduce(1, 4, orders=[[0, 1, 2]])",
    instead="Give each ring as a list of all ranks: orders=[[0, 1, 2, 3], [0, 2, 1, 3]].",
)
L138 = Rule(
    "L138 incomplete-forest",
    what="The given trees are not spanning trees from every rank, or bring more data from one rank "
    "than from another.",
    why="Every rank needs the data of all others; a tree brings none to a rank that it leaves out.",
    example="sley.algorithms.forest_allgather(2, trees=[[1, -1, 0]])",
    instead="Give a row for each tree: its chunks, then the parent of each rank, -1 for the root: "
    "trees=[[1, -1, 0], [1, 1, -1]].",
)
L139 = Rule(
    "L139 incomplete-routes",
    what="The given routes do not bring as many chunks from each rank to each other one, or pass a "
    "rank twice.",
    why="Every rank has data for all others, as much for each.",
    example="sley.algorithms.routed_alltoall(2, routes=[[1, 0, 1]])",
    instead="Give a row for each route: its chunks, then the ranks that it passes, -1 after the "
    "end: routes=[[1, 0, 1], [1, 1, 0]].",
)
L126 = Rule(
    "L126 unequal-parts",
    what="A script for msccl-tools groups references of different buffers, or splits one unevenly.",
    why="A reference stands for consecutive chunks of one buffer of one rank.",
    example="chunk(0, Buffer.input, 0, 4).split(3)",
    instead="Group references of one buffer, and split into a number that divides the size.",
)
L127 = Rule(
    "L127 no-single-origin",
    what="A script for msccl-tools asks for the origin or destination of a reduction.",
    why="A reduction has several input chunks, each with its own origin and destination.",
    example="c.reduce(d).get_dst_rank()",
    instead="Ask before the reduction, or compute the place from the loop's numbers.",
)
L129 = Rule(
    "L129 no-current-program",
    what="A script for msccl-tools calls chunk, XML, Json, Check or Print outside of a program, "
    "copies or reduces after the program's end, or begins a program inside another one.",
    why="These functions work on the program inside whose `with` they are called.",
    example="XML()  # after the with",
    instead="Move the call into `with MSCCLProgram(...):`, and end one program before the next.",
)
L130 = Rule(
    "L130 check-refuses",
    what="The `check` of a script's own collective does not return True for the buffers that the "
    "program leaves, or returns True although the outputs get no data, or other data than it sees.",
    why="Only the class's check defines which result is right. The result that the check accepts "
    "becomes the promise that the plan is proven to keep.",
    example="def check(self, prog): print('chunk 3 is wrong'); return False",
    instead="Correct the program or the check, which must return True for a right result. Let "
    "init_buffers return None for outputs without data.",
)
L132 = Rule(
    "L132 bad-buffers",
    what="The `init_buffers` of a script's own collective does not return the buffers of every "
    "rank, its `get_buffer_index` returns other places than an index plus a constant, or the "
    "collective and the topology have different numbers of ranks.",
    why="The buffers are a list with a dict for each rank, from the names of buffers to lists of "
    "chunks, with None for a chunk without data.",
    example="def init_buffers(self): return {Buffer.input: [Chunk(0, 0)]}",
    instead="Return a list with a dict for each rank of the topology.",
)
L133 = Rule(
    "L133 batched-parts",
    what="A program with interleaved_replication=False and several instances has a collective "
    "whose chunks belong to ranks.",
    why="Batched parts are whole programs on sections of the buffers. Only for a collective such "
    "as AllReduce do the sections together make a larger collective of the same kind; an AllGather "
    "of sections leaves the chunks in another order.",
    example='MSCCLProgram("a", topology, AllGather(8, 1, False), 2, interleaved_replication=False)',
    instead="Leave interleaved_replication out, or use one instance.",
)
L134 = Rule(
    "L134 one-sided-operation",
    what="A script for msccl-tools uses operations of MSCCL++: put, get, signal or wait.",
    why="sley's programs consist of copies and reductions; the compiler generates the "
    "synchronization, also for MSCCL++.",
    example="c.put(1, Buffer.output, 0); c.signal(1, Buffer.output, 0)",
    instead="Use copy and reduce; `sley compile SCRIPT -o plan.json` writes a plan for MSCCL++.",
)
L137 = Rule(
    "L137 bad-group",
    what="A switch can't write or combine the places of a `multicast` or a `load_reduce` together.",
    why="A switch reads or writes one address of several ranks. So each rank has one place, at the "
    "same index, and the rank that starts the operation has its own place beside them.",
    example='p.chunk(0, "in", 0).multicast([0, 1, 2], "out", 0)  # of rank 0 itself',
    instead="Name the other ranks, each once, and one index; copy the rank's own part, or reduce "
    "into it.",
)
