"""Rules of the formats: requirements on files that are read, and on plans that are written (F4xx).

F401 to F426 refuse to read a file; F430 to F434 are remarks about it. F436 and F462 to F468 refuse
a file that a target does not load, or that it executes otherwise than its steps say. F437 to F454
refuse to write a plan; F460 and F461 concern files in general. F470 to F499 are in
`mscclpp`, F501 to F533 in `deployment`.
"""

from __future__ import annotations

from sley.errors import Rule

F401 = Rule(
    "F401 not-xml, formerly F402",
    what="The file is not well-formed XML, or has a document type or entities.",
    why="A file that is cut off or has a stray character could mean anything after that place. No "
    "runtime reads a document type, and nested entities can grow without limit.",
    example='<algo name="ring" proto="LL"> ... and the file ends before </algo>',
    instead="Write the file again with its tool, or close the named tag.",
)
F403 = Rule(
    "F403 too-large, formerly F552",
    what="The file is longer, or has more elements, chunks, ranks or sends, than algorithms need.",
    why="No runtime loads it, no synthesiser writes it, and reading it would exhaust the memory.",
    example="a file of 200 MiB; nchunksperloop of two thousand million",
    instead="Use fewer chunks, instances or ranks, or write one file for each size range.",
)
F404 = Rule(
    "F404 unreadable-file, formerly L117 L140",
    what="A file does not exist, cannot be read, or is not text in UTF-8.",
    why="Without it there is no plan or program to read.",
    example='load("no-such-file.xml")',
    instead="Check the path and the permissions.",
)
F405 = Rule(
    "F405 wrong-element",
    what="An element or text is in a wrong position: an <algo> has only <gpu>s, a <gpu> only "
    "<tb>s, and a <tb> only <step>s.",
    why="An unknown element may be a misspelt step; ignoring it would change the algorithm.",
    example='<tb ...><stepp s="0" type="s" .../></tb>',
    instead="Correct the element's name, or move it to its position.",
)
F406 = Rule(
    "F406 missing-attribute",
    what="An element lacks a required attribute.",
    why="The runtimes refuse such a file at start, with all algorithms in it.",
    example='<step s="0" type="s" srcbuf="i" srcoff="0"/>, without cnt and other attributes',
    instead="Add the attribute.",
)
F407 = Rule(
    "F407 not-an-integer",
    what="A number is not a decimal integer of 32 bits (sizes in bytes: 64 bits).",
    why="The runtimes' parsers read only the start of other text, as a wrong number.",
    example='cnt="1.5", chan="0x2", srcoff="99999999999"',
    instead="Write a plain decimal integer.",
)
F408 = Rule(
    "F408 unknown-word",
    what="A type is not one of s r rcs rrs rrc rrcs cpy re nop, a buffer not one of i o s, or a "
    "protocol not one of Simple LL LL128.",
    why="A step with another type or buffer has no known meaning, so it can't be checked or run.",
    example='type="recv", srcbuf="x", proto="ll", or type="res_add", which has no meaning here',
    instead="Use one of the listed words.",
)
F409 = Rule(
    "F409 unknown-collective, formerly F410",
    what='The file names no collective with a fixed meaning: `coll` is unknown, or "custom".',
    why="Nothing can be proven about the algorithm without the values that the ranks must have at "
    "the end. A file contains only the steps of each GPU.",
    example='coll="allredcue"; coll="custom"; coll="alltoallv", of varying sizes',
    instead="Correct the name, or pass the collective: sley.load(file, "
    "collective=sley.AllToNext(ranks=16, chunks=2)), or a program for it: --collective FILE.py.",
)
F411 = Rule(
    "F411 chunk-numbers, formerly F477",
    what="The file's numbers of chunks are not those of the collective's buffers: nchunksperloop "
    "is below 1, or for AllGather, ReduceScatter and AllToAll not a multiple of ngpus; or "
    "input_chunks and output_chunks of an execution plan differ from the collective's.",
    why="A chunk is the call's size divided by the number; ranks' parts start at chunks.",
    example='coll="allgather" ngpus="8" nchunksperloop="12"',
    instead="Set nchunksperloop to the number of chunks of the larger buffer, and the others to "
    "those of their buffers; or correct the name of the collective.",
)
F412 = Rule(
    "F412 wrong-ids, formerly F413 F474",
    what="The ids of the GPUs, or of a GPU's thread blocks, are not 0, 1, 2 ..., each once; in an "
    "execution plan, in the order of the file.",
    why="A GPU's id is its rank: without a program, its peers wait forever. Waits name blocks by "
    "id, and MSCCL++ finds a block's channels by id, but its operations by position.",
    example='ngpus="8" with seven <gpu> elements, or two of them with id="3"',
    instead="Number GPUs and blocks from 0, each once; correct ngpus, and the depid of waits.",
)
F414 = Rule(
    "F414 step-order",
    what="The steps of a block are not in the order s = 0, 1, 2 ...",
    why="The runtimes number them again in the order of the file, so waits refer to other steps.",
    example='s="0", s="2", s="1"',
    instead="Put the steps in order, or renumber them and the deps of the steps that wait.",
)
F415 = Rule(
    "F415 wrong-wait, formerly F416",
    what="depid and deps name a missing block or step, or no earlier step of the same block.",
    why="The step would wait forever, or not at all: a block runs its steps one after another.",
    example='depid="4" deps="7", where block 4 has 5 steps',
    instead="Correct depid and deps; both are -1 for a step that waits for nothing.",
)
F417 = Rule(
    "F417 bad-peer, formerly F418 F469",
    what="A block has no peer for its steps, or one that is the GPU itself, does not exist, or has "
    "no block that names this GPU on the channel.",
    why="There is no connection to a missing GPU, nor from a GPU to itself. The ranks connect all "
    "peers that their blocks name, which fails if only one end names the other.",
    example='<gpu id="2"> ... <tb id="0" send="2" ...>; send="8" with ngpus="8"',
    instead="Name the peer at both ends, or write -1 for a peer that the block doesn't need; local "
    "moves are cpy and re steps.",
)
F419 = Rule(
    "F419 channel-range",
    what="chan is not between 0 and nchannels - 1.",
    why="Channels from nchannels up are never connected: the first message hangs.",
    example='nchannels="2" and chan="2"',
    instead="Increase nchannels or correct chan.",
)
F420 = Rule(
    "F420 outside-buffer, formerly F485",
    what="The chunks of a step or a range are not all inside the buffer. In MSCCL++ a packet takes "
    "two chunks of scratch, and only the protocol LL makes the scratch twice as large.",
    why="The runtimes check at most the first chunk; the rest reads or overwrites other memory.",
    example='srcbuf="i" srcoff="7" cnt="2", where the input has 8 chunks',
    instead="Correct the offset or the count, or the buffer's number of chunks (in MSCCL XML "
    "s_chunks or nchunksperloop).",
)
F421 = Rule(
    "F421 bad-count",
    what="A step that moves data has a count of 0.",
    why="A step without chunks moves nothing, but its peer expects a message.",
    example='type="s" cnt="0"',
    instead="Set cnt to the number of chunks, or make the step a nop.",
)
F422 = Rule(
    "F422 value-range, formerly F473",
    what="A value is outside its range: ngpus and nchannels are at least 1, flags are 0 or 1, "
    "sizes are not negative; or MSCCL++ can't compute with a number of an execution plan.",
    why="With other values the runtimes refuse the file or read past the end of their tables; by "
    "its source, MSCCL++ divides by it, keeps only its low bits, or can't start the kernel.",
    example='hasdep="2", ngpus="0", s_chunks="-1"; "num_threads_per_block": 2048, "unit_size": 0',
    instead="Give a value in the range.",
)
F424 = Rule(
    "F424 other-collective, formerly F559",
    what="A file can't be read as this collective: it has another number of ranks, or it is a "
    "schedule of another collective, or for another place.",
    why="The file's algorithm is only for its own ranks, and the sends of a schedule determine the "
    "final data of each rank; only ForestColl's trees serve several collectives.",
    example="sley import schedule.json --collective allreduce  # an AllGather of TE-CCL",
    instead="Pass a collective for the file's ranks, or leave the option out.",
)
F425 = Rule(
    "F425 damaged-plan-file",
    what="A .plan file is cut off or changed: its size, checksum, header or tables don't agree.",
    why="sley reads the columns of such a file as they are in memory.",
    example="a file whose copying was interrupted, or that was transferred as text",
    instead="Copy the file again, as binary, or write it again with sley compile or sley.save.",
)
F426 = Rule(
    "F426 newer-plan-file",
    what="A .plan file has a newer major version than this sley reads.",
    why="A new major version changes the meaning of what older versions read.",
    example="a file of version 2.0, where sley reads version 1",
    instead="Read it with a newer sley, or write the plan again with this one.",
)
F430 = Rule(
    "F430 wait-without-hasdep",
    what='Remark: a step for which others wait does not have hasdep="1".',
    why="Without it the runtimes publish no progress at this step: the waiting steps continue only "
    "after a later step of the block that has it, or never.",
    example='depid="2" deps="1", while step 1 of block 2 has hasdep="0"',
    instead="Read the file and save it again: sley sets hasdep where it is necessary.",
)
F431 = Rule(
    "F431 ignored, formerly F498",
    what="Remark: something that the steps don't need was ignored: an attribute, a <copy> element, "
    "a key of an execution plan, or deps of a step without depid.",
    why="It is an extension, meaningless, or of a version that may give the plan another meaning.",
    example='redop="nop" on <algo>; <copy i_off="0" o_off="0"/>',
    instead="No action is necessary; when sley saves the file again, it is removed.",
)
F432 = Rule(
    "F432 without-effect, formerly F435 F497",
    what="Remark: an instruction has no effect. A nop without a wait, a nop at the end of a block, "
    "or a wait for an earlier step of the same block was removed; or MSCCL++ flushes nothing.",
    why="The runtimes of MSCCL XML count steps wrongly after a nop without a wait; and they wait "
    "forever for a step of the same block if none of the steps from it up to the waiting one has "
    'hasdep="1". By its source, MSCCL++ flushes as many channels as the flush has destinations, '
    "none: a push's sources may be overwritten only after a signal from its receiver.",
    example='type="nop" depid="-1"; {"name": "flush", "channel_type": "port", "channel_ids": [0]}',
    instead="No action is necessary in MSCCL++. Read MSCCL XML and save it again without them; "
    "--target proves whether a runtime can execute the file as it is.",
)
F433 = Rule(
    "F433 declared-sizes",
    what="Remark: i_chunks or o_chunks differ from the rank's chunks in the collective.",
    why="The executor refuses steps whose offset is beyond the declared size.",
    example='coll="allreduce" nchunksperloop="8" with i_chunks="4"',
    instead="Read the file and save it again, or correct the sizes.",
)
F434 = Rule(
    "F434 assumed, formerly T610",
    what="Remark: sley assumed a value that the file does not contain.",
    why="MSCCL XML has no root, and `inplace` may be missing, or allow both. Other tools' "
    "topologies list the parts of a node, but rarely their rates. A .plan file of an earlier sley "
    "lacks newer parameters of the cost model.",
    example='coll="broadcast", without a root in the file; nvidia-smi shows NV12, but no rate',
    instead="Pass the value: sley.load(file, root=..., in_place=...). For a topology, name a "
    "machine that has them, as in --topology topo.xml,like=ndv4:2, or import the file to TOML and "
    "write your machine's rates into it.",
)
F436 = Rule(
    "F436 idle-gpu",
    what="A GPU has no blocks.",
    why="The runtimes start one block of threads for each <tb>, and can't start a GPU without any.",
    example='<gpu id="1" i_chunks="1" o_chunks="1" s_chunks="0"/>',
    instead="Give the GPU something to do, or leave its rank out of the collective.",
)
F437 = Rule(
    "F437 varying-counts, formerly K522",
    what="A plan of varying counts is written to a file, proven for a runtime, or run on devices.",
    why="Counts of AllToAllV and AllGatherV are known only at run time. Runtimes that read files, "
    "kernels and traces fix the size of every message before a call.",
    example='sley.save(plan, "exchange.xml")  # for sley.AllToAllV(8)',
    instead="Run it on sley's processes or communicator, or pad all parts and use AllToAll.",
)
F438 = Rule(
    "F438 groups-in-file",
    what="A plan with switches that reduce or multicast is written for a runtime without them.",
    why="Every step of MSCCL XML has one peer in each direction. MSCCL++ has a multicast (gstore, "
    "since July 2026), and a reduction whose result goes to all GPUs from which the switch reads "
    "(glres), both within a host. It has no glre, a reduction alone, which a ReduceScatter needs.",
    example='sley.save(sley.compile(sley.algorithms.nvls_reducescatter(1, 8)), "nvls.json")',
    instead="Compile the program with switches=False, --no-switches: then each rank sends and "
    "receives messages of its own. Or let a switch multicast the result to the ranks whose data it "
    "reduces, as nvls-allreduce does.",
)
F440 = Rule(
    "F440 unknown-target, formerly F500",
    what="A target, a runtime or its version is unknown, or doesn't read files of this format: "
    "executor, rccl and msccl read MSCCL XML, mscclpp reads execution plans.",
    why="They differ in formats, limits, spellings, supported operations, and in the file that "
    "runs for a call. sley knows only runtimes whose source code was read.",
    example='sley.save(plan, "plan.xml", target="nccl"); sley doctor plans --target rccl@banana',
    instead="Name one of the expected targets and versions.",
)
F441 = Rule(
    "F441 not-in-format, formerly F442 F453 F456",
    what="A plan has an order, a protocol or thread blocks that the format can't represent. MSCCL "
    "XML has tile-major plans in Simple, LL and LL128, and blocks with one send peer, one receive "
    "peer and one channel; MSCCL++ has Simple, and LL within a host.",
    why="Interpreters of MSCCL XML run all steps for a tile, then the next tile, and copy messages "
    "through a FIFO; peers and channel are attributes of <tb>. MSCCL++ writes packets through "
    "memory channels, which stay within a host.",
    example='sley.save(sley.compile(ring, protocol="direct"), "plan.xml")',
    instead="Compile the program with the expected order, protocol or allocation.",
)
F443 = Rule(
    "F443 no-such-collective",
    what="The target does not have the plan's collective under this name with the same meaning.",
    why="A runtime selects a file by the call's collective, and runs it whatever it computes.",
    example="sley.save of an AllToNext for the executor, which has no custom collectives",
    instead='Write for "msccl", which has custom collectives, or use a standard collective.',
)
F444 = Rule(
    "F444 target-limit, formerly F445 F446 F447 F448 F450 F481",
    what="A plan exceeds a limit of the target: steps in a block (each wait after the first takes "
    "a nop step; in MSCCL++ 64 operations, pipelines included), blocks on a GPU or a channel, "
    "channels, chunks in a step, offsets, waited blocks, or XML elements.",
    why="The runtimes' tables have a fixed size: they refuse a larger file, write past the end of "
    "a table, or take one number for another. The writer does not divide messages: more of them "
    "could make a plan hang that is proven not to.",
    example="a ring over 64 ranks with one block a rank, 126 steps, for the executor's 64",
    instead="Use fewer instances or chunks, more channels or blocks, or another target.",
)
F451 = Rule(
    "F451 unwritable-value",
    what="A name is not XML text or is too long, a size is negative, min_bytes is greater than "
    "max_bytes, or threads or ranks_per_node is not a number that the target supports.",
    why="The runtimes' parsers cut longer values, and never select an empty range of sizes.",
    example='sley.save(plan, "plan.xml", min_bytes=2048, max_bytes=1024)',
    instead="Correct the value.",
)
F454 = Rule(
    "F454 input-overwritten, formerly N657",
    what="An out-of-place plan writes to the input.",
    why="A call out of place leaves its input as it was: NCCL's send buffers are const, "
    "`comm.all_reduce(data, out=out)` doesn't change `data`, and a caller relies on that.",
    example='<step type="rrc" srcbuf="i" dstbuf="i" .../> in a file with outofplace="1"',
    instead="Use scratch or the output for partial results, or write the plan in place.",
)
F460 = Rule(
    "F460 unknown-format, formerly P802",
    what="The suffix of a name is no known format: .plan is sley's own, .xml MSCCL XML, .json an "
    "MSCCL++ execution plan, .cu and .cpp kernels to be written, .svg, .png and .pdf pictures.",
    why="sley does not guess a format from the text.",
    example='sley.save(plan, "plan.txt")',
    instead="Give the file a name that ends in .plan, .xml, or .cu for kernels.",
)
F461 = Rule(
    "F461 unwritable-file",
    what="The folder does not exist, or the file cannot be written there.",
    why="sley writes the file in a temporary place and then moves it, so that it is never in part.",
    example='sley.save(plan, "no-such-folder/plan.xml")',
    instead="Name another path, create the folder, or check the permissions and the disk's space.",
)
F462 = Rule(
    "F462 foreign-text",
    what="The file is XML, but the target's own lexer does not read this text, or misreads it.",
    why="The lexers know only tags with attributes in double quotes, one space before each, and "
    "comments. They refuse an XML declaration, tabs and line ends in tags; they leave &...; as it "
    "is, cut long values, and read numbers with a leading 0 as octal.",
    example='<?xml version="1.0"?>; <step s=\'0\' ...>; cnt="010"',
    instead="Read the file and save it again: sley writes only what the lexers read.",
)
F463 = Rule(
    "F463 never-chosen, formerly F514",
    what="No call runs the file: its range of sizes is empty, or has no size that its chunks "
    "divide; it allows neither place, or not this one; or the runtime has no such collective.",
    why="Runtimes of MSCCL XML silently run their own algorithm; MSCCL++ may end the process.",
    example='inplace="0" outofplace="0"; minBytes="2048" maxBytes="1024"; 1000 bytes for 3 chunks',
    instead="Correct the range (min_bytes, max_bytes; --min-bytes, --max-bytes) or the place.",
)
F464 = Rule(
    "F464 declared-size",
    what="An offset is beyond its buffer's declared size, or that contradicts nchunksperloop.",
    why="The runtimes compare them when they load a file, and refuse it.",
    example='i_chunks="4" and srcbuf="i" srcoff="4"',
    instead="Correct i_chunks, o_chunks or s_chunks, or read the file and save it again.",
)
F465 = Rule(
    "F465 nop-chain",
    what="A step without a wait comes after a nop with one.",
    why="The runtimes attach the waits of nops to the next step, which must have one of its own.",
    example='a nop with depid="0" deps="3", then a send with depid="-1"',
    instead="Move the last nop's wait to the step and remove this nop, or read the file and save "
    "it again.",
)
F466 = Rule(
    "F466 silent-wait",
    what="A step waits for a step after which its block never announces its progress.",
    why='Only steps with hasdep="1" announce progress. A wait ends when its block announces the '
    "step or a later one; without an announcement, the call hangs.",
    example='depid="2" deps="1", while steps 1 and later of block 2 have hasdep="0"',
    instead='Set hasdep="1" at the step that others wait for, or read the file and save it again.',
)
F467 = Rule(
    "F467 merged-reductions",
    what="Consecutive re steps that the runtimes merge have different counts, or a source that "
    "overlaps their destination, or there are too many of them.",
    why="The runtimes run re steps between the same buffers into the same place at once, if the "
    'later ones have no wait and none before the last has hasdep="1": with the last one\'s count, '
    "reading all sources before they write, and with a table of 16 sources.",
    example='re steps into dstbuf="o" dstoff="0", the first with cnt="1", the second with cnt="2"',
    instead='Set hasdep="1" at the last step of a run, or read the file and save it again.',
)
F468 = Rule(
    "F468 fused-operation",
    what="A step's type is one that the target parses, but does not run.",
    why="RCCL's kernels run only s, r, cpy, re and nop; with others the call fails.",
    example='type="rrc", for rccl',
    instead="Write it again for the target, which splits the steps: sley compile FILE.xml --target "
    "rccl -o NEW.xml.",
)
