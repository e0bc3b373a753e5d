"""Rules of MSCCL++ execution plans (F470 to F499).

F470 to F496 refuse an execution plan, F499 refuses one where a plan with messages is expected. What
the executor does is from reading its code, in the versions of `formats.mscclpp.targets`; without a
version, all of them do it.
"""

from __future__ import annotations

from sley.errors import Rule

F470 = Rule(
    "F470 not-json",
    what="The file is not a JSON text as MSCCL++ reads it: an object, in UTF-8, without comments, "
    "NaN, numbers beyond 64-bit floats, half surrogate pairs or repeated keys.",
    why="A file that is cut off could mean anything after that place, and parsers use one value of "
    "a repeated key. By its source, MSCCL++ refuses the other cases even in keys that it ignores.",
    example='{"name": "ring", "gpus": [ ... and the file ends before the bracket',
    instead="Write the file again with its tool, or correct the named place.",
)
F472 = Rule(
    "F472 wrong-key, formerly F471",
    what="An object of an execution plan lacks a key that MSCCL++ needs, or a key has a value of "
    "another type, or one that is not among its words.",
    why="By its source, the loader then throws, reads past the object, or converts the value.",
    example='"index": 1.5, "gpus": {}, "channel_type": "proxy", "protocol": "LL128"',
    instead="Add the key, or write a value of the expected type.",
)
F475 = Rule(
    "F475 zero-chunks",
    what="input_chunks or output_chunks of a GPU is 0, or a range has no chunks.",
    why="The loader of MSCCL++ divides by them without a test: the process ends with SIGFPE.",
    example='"input_chunks": 0 on the ranks that only receive; "size": 0',
    instead="Give every rank the chunks of both buffers, even where it does not use them.",
)
F476 = Rule(
    "F476 alignment",
    what="buffer_alignment is not a multiple of 16 bytes.",
    why="By its source, MSCCL++ adds the last bytes of a range, after its last whole 16 bytes, at "
    "wrong places in the loops that reduce and read.",
    example='"buffer_alignment": 4',
    instead="Set buffer_alignment to 16 or a multiple.",
)
F478 = Rule(
    "F478 unknown-operation",
    what="The parser of MSCCL++, or of this version, does not know the name of an operation.",
    why="It refuses the file. Its language can write some of these names, such as glre. gstore and "
    "gstorepkt came with commit 414f6d1a of 2026-07-02, while all versions are called 0.9.0.",
    example='{"name": "glre", ...}; {"name": "gstore", ...} for mscclpp@v0.9.0',
    instead="Use an operation that the executor has: a glre is a glres, or a get with re. Name the "
    "executor's version with --target mscclpp@VERSION.",
)
F479 = Rule(
    "F479 wrong-operands, formerly F480",
    what="The sources, destinations, channels or keys of an operation are not those that MSCCL++ "
    "uses: in number, in whether they are local, remote or on a switch, or because they are keys "
    "of operations of another kind.",
    why="By its source, the executor mistakes a reference of another kind for the number of a "
    "buffer, and does not execute surplus operands. The keys of barriers, semaphores, pipelines "
    "and moves are in the same memory: the last key read overwrites the others.",
    example="a copy with two sources; a put to a local buffer; a put on two channels",
    instead="Give the operation exactly its operands, in order, and no other keys; or split it.",
)
F482 = Rule(
    "F482 table-overflow",
    what="A block, GPU or operation has more entries than a table of MSCCL++: 16 channels of a "
    "type and 16 references to remote buffers of a type in a block, 8 channels, 16 semaphores and "
    "10 buffers on a side in an operation, and on a GPU 16 barriers, 1024 port channels and 509 "
    "remote buffers with access by ports.",
    why="By its source, nothing checks these limits: surplus entries silently overwrite other "
    "memory. A port's trigger has 10 bits for a channel and 9 for a memory.",
    example='a block with 17 memory channels; "barrier_id": 16',
    instead="Distribute the work over more blocks or operations.",
)
F483 = Rule(
    "F483 dangling-reference, formerly F484",
    what="A channel, remote buffer or switch group names the GPU itself or a GPU that the plan "
    "does not have; a channel has no other end; a switch group is not on all its GPUs; or an "
    "operation or block refers to a channel, remote buffer or semaphore that does not exist, or is "
    "not declared for its type of channel.",
    why="The channels of two GPUs to one another are, in order, the ends of one: nobody signals or "
    "waits at an end that the other GPU does not have. The members of a group make it together: "
    "they would wait for one another. By its source, MSCCL++ checks no index: it uses whatever is "
    "in memory there, or the first buffer.",
    example='"connected_to": [2] with two GPUs; "channel_ids": [3] in a block with two channels',
    instead="Correct the rank or the index (those of an operation refer to the lists of its "
    "block), or declare the entry: a channel at both ends, a group on all its GPUs.",
)
F486 = Rule(
    "F486 unequal-ranges, formerly F495",
    what="The ranges of one move do not have the same number of chunks; or an operation inside a "
    "pipeline has not num_chunks chunks, moves packets, or is a pipeline.",
    why="By its source, MSCCL++ uses the size of one range for all: that of the first source, or "
    "for put that of each destination. In a pipeline it moves memory past the end of shorter "
    "ranges, repeats a whole packet operation in every iteration, and crashes at inner pipelines.",
    example='a re of a source with "size": 2 and one with "size": 1',
    instead="Give all ranges of a reduction, or of a pair, the same size.",
)
F488 = Rule(
    "F488 executed-otherwise, formerly F487 F489 F490 F491 F492",
    what="MSCCL++ executes an operation otherwise than it is written: one that reduces, but not by "
    "sum; a put with signal (pws, pwsf) on a memory channel; a ppkt on a port channel; a get with "
    "two offsets; a put or ppkt on a memory channel from several buffers; packets outside scratch.",
    why="By its source, it ignores reduce_op and sums; never signals after a put on a memory "
    "channel; takes the source of a ppkt on a port channel for a buffer of the executor's first "
    "plan; exchanges the offsets of a get; reads all sources from the buffer of the first; and "
    "takes packets from the scratch whatever their type is, at the scratch's offset.",
    example='{"name": "pws", "channel_type": "memory", ...}; "reduce_op": "max"',
    instead="Write the operation as the message says.",
)
F493 = Rule(
    "F493 wrong-remote-memory, formerly F457 F494",
    what="MSCCL++ accesses the wrong memory of another rank: with use_double_scratch_buffer, "
    "scratch without packets or of another size than the rank's own; in place, a buffer that "
    "begins at the rank's own part (the input of an AllGather, the output of a ReduceScatter); or "
    "a scratch that a rank does not have.",
    why="By its source, it uses the second half of the scratch in every other call, at half the "
    "rank's own size, but without packets always the first; it computes addresses in other ranks' "
    "memory from the place of the rank's own buffer, which differs in place; with reuse_resources "
    "it divides by the rank's own scratch_chunks; and it registers memory of no bytes.",
    example='"use_double_scratch_buffer": true and a put to a remote buffer with "type": "s"; '
    '"scratch_chunks": 1 on rank 0, and 2 on rank 1',
    instead="Change the plan as the message says.",
)
F496 = Rule(
    "F496 barrier-count",
    what="num_threadblocks of a barrier is not the number of blocks that use the barrier.",
    why="The blocks would wait forever, or some would not wait for all.",
    example='"num_threadblocks": 3, while two blocks of the GPU have this barrier_id',
    instead="Set num_threadblocks to the blocks' number, or give other blocks another barrier_id.",
)
F499 = Rule(
    "F499 one-sided-plan",
    what="An execution plan of MSCCL++ is given to a command that needs a plan with messages.",
    why="sley proves execution plans of MSCCL++, but can't simulate, run, draw, lift or rewrite "
    "them: their blocks access the memory of other ranks instead of sending messages.",
    example="sley simulate plan.json --topology ndv4",
    instead="sley verify proves the file, and sley package copies it into a directory for MSCCL++. "
    "To simulate or run its algorithm, use the program from which it was compiled, or write one: "
    "sley compile writes it for MSCCL++, too.",
)
