"""Rules of MSCCL++ execution plans (F470 to F499).

F470 to F496 refuse an execution plan, F497 and F498 are remarks about one, F499 refuses one where a
plan with messages is expected. What the executor does is from reading its code, in the versions of
`formats.mscclpp.targets`; without a version, all of them do it.
"""

from __future__ import annotations

from sley.errors.diagnostic import Rule

F470 = Rule(
    "F470",
    "not-json",
    what="The file is not a JSON text as MSCCL++ reads it: an object, in UTF-8, without comments, "
    "NaN, numbers beyond 64-bit floats, half surrogate pairs or repeated keys.",
    why="A file that is cut off could mean anything after that place, and parsers silently use "
    "one value of a repeated key. By its source, MSCCL++ refuses the other cases even in a key "
    "that it does not read.",
    example='{"name": "ring", "gpus": [ ... and the file ends before the bracket',
    instead="Write the file again with its tool, or correct the named place.",
)
F471 = Rule(
    "F471",
    "missing-key",
    what="An object of an execution plan lacks a key that MSCCL++ needs.",
    why="By its source, the loader then throws, or reads past the object.",
    example='{"name": "signal", "channel_type": "memory"}, without channel_ids',
    instead="Add the key.",
)
F472 = Rule(
    "F472",
    "wrong-type",
    what="A value of an execution plan has a type other than the one that MSCCL++ reads, or "
    "is not one of its words.",
    why="By its source, the loader throws; or it converts the value, and continues with a "
    "different one.",
    example='"index": 1.5, "gpus": {}, "channel_type": "proxy", "protocol": "LL128"',
    instead="Write a value of the expected type.",
)
F473 = Rule(
    "F473",
    "value-range",
    what="A number of an execution plan is outside the range in which MSCCL++ computes with it.",
    why="By its source, the loader divides by the number or keeps only its low bits, or the "
    "kernel can't start.",
    example='"num_threads_per_block": 2048, "unit_size": 0, "min_message_size": 4294967296, which '
    "is read as 0",
    instead="Give a value in the range.",
)
F474 = Rule(
    "F474",
    "id-order",
    what="The id of a GPU or of a thread block is not its position in its list, from 0.",
    why="MSCCL++ refuses another id of a GPU. By its source, it finds the channels of a "
    "block by its id, and its operations by its position.",
    example='"threadblocks": [{"id": 1, ...}, {"id": 0, ...}]',
    instead="Number GPUs and blocks in the order of the file.",
)
F475 = Rule(
    "F475",
    "zero-chunks",
    what="input_chunks or output_chunks of a GPU is 0, or a range has no chunks.",
    why="The loader of MSCCL++ divides by these numbers without a test: the process ends "
    "with SIGFPE.",
    example='"input_chunks": 0 on the ranks that only receive; "size": 0',
    instead="Give every rank the chunks of both buffers, even where it does not use them.",
)
F476 = Rule(
    "F476",
    "alignment",
    what="buffer_alignment is not a multiple of 16 bytes.",
    why="By its source, MSCCL++ adds the last bytes of a range, after its last whole 16 "
    "bytes, at wrong places in the loops that reduce and read.",
    example='"buffer_alignment": 4',
    instead="Set buffer_alignment to 16 or a multiple.",
)
F477 = Rule(
    "F477",
    "collective-chunks",
    what="input_chunks and output_chunks are not the buffers of the collective.",
    why="The ranks must have equal chunks, and an AllGather's output one part for each rank.",
    example='"collective": "allgather" on 2 GPUs with "input_chunks": 2, "output_chunks": 2',
    instead="Correct the numbers of chunks, or the name of the collective.",
)
F478 = Rule(
    "F478",
    "unknown-operation",
    what="The name of an operation is not one that the parser of MSCCL++ knows, or that of the "
    "version knows yet.",
    why="It refuses the file. Its language can write some of these names, such as glre. gstore and "
    "gstorepkt came with commit 414f6d1a of 2026-07-02, while all versions are called 0.9.0.",
    example='{"name": "glre", ...}; {"name": "gstore", ...} for mscclpp@v0.9.0',
    instead="Use an operation that the executor has: a glre is a glres, or a get with re. Name the "
    "executor's version with --target mscclpp@VERSION.",
)
F479 = Rule(
    "F479",
    "wrong-operands",
    what="The sources, destinations or channels of an operation are not those that MSCCL++ "
    "uses: in number, or in whether they are local, remote or on a switch.",
    why="By its source, the executor mistakes a reference of another kind for the number of a "
    "buffer, and does not execute surplus operands.",
    example="a copy with two sources; a put to a local buffer; a put on two port channels with "
    "one source",
    instead="Give the operation exactly its operands, in its order.",
)
F480 = Rule(
    "F480",
    "overlapping-keys",
    what="An operation has keys of operations of another kind.",
    why="By its source, MSCCL++ stores the keys of barriers, semaphores, pipelines and "
    "moves in the same memory: the last key read overwrites the others.",
    example='{"name": "signal", "channel_ids": [0], "barrier_id": 1, ...}',
    instead="Remove the key, or split the operation into two.",
)
F481 = Rule(
    "F481",
    "too-many-operations",
    what="A block has more than 64 operations, including those inside pipelines.",
    why="MSCCL++ refuses the plan at its first call.",
    example="a block with 65 operations",
    instead="Distribute the operations over more blocks.",
)
F482 = Rule(
    "F482",
    "table-overflow",
    what="A block, GPU or operation has more entries than a table of MSCCL++: 16 channels of a "
    "type and 16 references to remote buffers of a type in a block, 8 channels, 16 semaphores and "
    "10 buffers on a side in an operation, and on a GPU 16 barriers, 1024 port channels and 509 "
    "remote buffers with access by ports.",
    why="By its source, nothing checks these limits: surplus entries silently overwrite other "
    "memory. A port's trigger has 10 bits for a channel and 9 for a memory, so it names another "
    "one.",
    example='a block with 17 memory channels; "barrier_id": 16',
    instead="Distribute the work over more blocks or operations.",
)
F483 = Rule(
    "F483",
    "bad-rank",
    what="A channel, remote buffer or switch group names the GPU itself or a GPU that the plan "
    "does not have; or a channel on which an operation signals or waits has no other end; or the "
    "GPUs of a switch group don't all have it.",
    why="There is no connection to such a GPU. The channels of two GPUs to one another are, in "
    "order, the ends of one: nobody signals or waits at an end that the other GPU does not have. "
    "The members of a group make it together: they would wait for one another.",
    example='"connected_to": [2] with two GPUs',
    instead="Correct the rank, or declare the channel or the group on all its GPUs.",
)
F484 = Rule(
    "F484",
    "no-such-entry",
    what="An operation or block refers to a channel, remote buffer or semaphore that does not "
    "exist, or that is not declared for its type of channel.",
    why="By its source, MSCCL++ checks no index: it uses whatever is in memory there, or "
    "the first buffer.",
    example='"channel_ids": [3] in a block with two memory channels',
    instead="Declare the entry, or correct the index. The indices of an operation refer to the "
    "lists of its block.",
)
F485 = Rule(
    "F485",
    "outside-buffer",
    what="The chunks of a range are not all inside the buffer. A packet takes two chunks of "
    "scratch, and only the protocol LL makes the scratch twice as large.",
    why="By its source, MSCCL++ checks no bounds: it reads or overwrites other memory.",
    example='{"type": "i", "index": 7, "size": 2}, where the input has 8 chunks',
    instead="Correct the range, or the buffer's number of chunks.",
)
F486 = Rule(
    "F486",
    "unequal-ranges",
    what="The ranges of one move do not have the same number of chunks.",
    why="By its source, MSCCL++ uses the size of one range for all: that of the first "
    "source, or for put that of each destination.",
    example='a re of a source with "size": 2 and one with "size": 1',
    instead="Give all ranges of a reduction, or of a pair, the same size.",
)
F487 = Rule(
    "F487",
    "reduce-op",
    what="An operation reduces with an operation other than sum.",
    why="By its source, the parser of MSCCL++ ignores reduce_op: every plan sums.",
    example='"reduce_op": "max"',
    instead="Use sum, or a runtime with this reduction.",
)
F488 = Rule(
    "F488",
    "silent-signal",
    what="A put with signal (pws, pwsf) is on a memory channel.",
    why="By its source, MSCCL++ performs the put there, but never signals: the receiver "
    "waits forever.",
    example='{"name": "pws", "channel_type": "memory", ...}',
    instead="Write a put, a nop and a signal.",
)
F489 = Rule(
    "F489",
    "wrong-port-source",
    what="A ppkt is on a port channel, where the executor takes its source from another plan.",
    why="By its source, MSCCL++ numbers the buffers of all plans of an executor, but takes the "
    "source of a ppkt for a buffer of the first one.",
    example='{"name": "ppkt", "channel_type": "port", ...}',
    instead="Write packets with cpkt and push them with rppkt.",
)
F490 = Rule(
    "F490",
    "swapped-offsets",
    what="The source and the destination of a get have different offsets.",
    why="By its source, MSCCL++ reads the source at the offset of the destination, and "
    "writes the destination at the offset of the source.",
    example='a get from {"buffer_id": 0, "index": 1} to {"type": "s", "index": 0}',
    instead="Use the same index on both sides, or let the other rank put.",
)
F491 = Rule(
    "F491",
    "mixed-sources",
    what="The sources of a put or ppkt on a memory channel are in different buffers.",
    why="By its source, MSCCL++ reads all of them from the buffer of the first source.",
    example='a put with the sources {"type": "i", ...} and {"type": "s", ...}',
    instead="Write one operation for each buffer.",
)
F492 = Rule(
    "F492",
    "packets-outside-scratch",
    what="An operation reads or writes packets outside of the scratch.",
    why="By its source, MSCCL++ takes packets from the scratch whatever the type is, and "
    "adds the offset of the scratch to remote ones.",
    example='a ppkt to a remote buffer with "type": "o"',
    instead="Send packets to the scratch, and unpack them there.",
)
F493 = Rule(
    "F493",
    "wrong-half-of-scratch",
    what="A plan with use_double_scratch_buffer accesses scratch without packets: by an operation "
    "on another rank, through a port or a switch.",
    why="By its source, MSCCL++ uses the second half of the scratch in every other call, "
    "but these operations always access the first half.",
    example='"use_double_scratch_buffer": true and a put to a remote buffer with "type": "s"',
    instead="Set use_double_scratch_buffer to false, or use packets.",
)
F494 = Rule(
    "F494",
    "shifted-remote-buffer",
    what="A plan in place accesses another rank's buffer that begins at the rank's own part: the "
    "input of an AllGather, the output of a ReduceScatter.",
    why="By its source, MSCCL++ computes addresses in other ranks' memory from the place of "
    "the rank's own buffer, which differs.",
    example='an AllGather with "inplace": true and a remote buffer with "type": "i"',
    instead="Access the larger buffer, with the index of the rank's part.",
)
F495 = Rule(
    "F495",
    "pipeline-range",
    what="An operation inside a pipeline can't be executed in units: its ranges differ from the "
    "pipeline's num_chunks, or it moves packets, or it is itself a pipeline.",
    why="By its source, MSCCL++ moves memory past the end of shorter ranges, repeats a "
    "whole packet operation in every iteration, and crashes at inner pipelines.",
    example='"num_chunks": 2 and an inner operation with "size": 1',
    instead="Give all inner ranges num_chunks chunks, and move other operations out of the "
    "pipeline.",
)
F496 = Rule(
    "F496",
    "barrier-count",
    what="num_threadblocks of a barrier is not the number of blocks that use the barrier.",
    why="The blocks would wait forever, or some would not wait for all.",
    example='"num_threadblocks": 3, while two blocks of the GPU have this barrier_id',
    instead="Set num_threadblocks to the number of blocks, or give other blocks another "
    "barrier_id.",
)
F497 = Rule(
    "F497",
    "idle-flush",
    what="Remark: a flush has no effect.",
    why="By its source, MSCCL++ flushes as many channels as the operation has destinations, "
    "which is none. So the sources of a push may be overwritten only after a signal from its "
    "receiver.",
    example='{"name": "flush", "channel_type": "port", "channel_ids": [0]}',
    instead="No action is necessary: sley proves the plan without the flush.",
)
F498 = Rule(
    "F498",
    "ignored-key",
    what="Remark: MSCCL++ does not read a key of the file.",
    why="It may belong to another version, in which the plan has another meaning.",
    example='"chunk_groups": 2',
    instead="Remove the key, or check the version of the executor.",
)
F499 = Rule(
    "F499",
    "one-sided-plan",
    what="An execution plan of MSCCL++ is given to a command that needs a plan with messages.",
    why="sley proves execution plans of MSCCL++, but can't simulate, run, draw, lift or rewrite "
    "them: their blocks access the memory of other ranks instead of sending messages.",
    example="sley simulate plan.json --topology ndv4",
    instead="sley verify proves the file, and sley package copies it into a directory for "
    "MSCCL++. To simulate or run its algorithm, use the program from which it was compiled, or "
    "write one: sley compile writes it for MSCCL++, too.",
)
