"""Rules of the formats: what a file that is read must be, and what a file that is written can say.

F401 to F424 refuse a file that is read, F430 to F435 only remark on it; F440 to F453 refuse to
write, F460 and F461 are about files as such.
"""

from __future__ import annotations

from sley.errors.diagnostic import Rule

F401 = Rule(
    "F401",
    "not-xml",
    what="The file is not well-formed XML.",
    why="A file that is cut off or has a stray character could mean anything after that place.",
    example='<algo name="ring" proto="LL"> ... and the file ends before </algo>',
    instead="Write the file again with the tool that made it, or close the tag that is named.",
)
F402 = Rule(
    "F402",
    "document-type",
    what="The file has a document type or declares entities.",
    why="MSCCL XML has neither, no runtime reads them, and nested entities can grow without bound.",
    example='<!DOCTYPE algo [<!ENTITY a "...">]>',
    instead="Remove the <!DOCTYPE ...> declaration and write the entities' text out.",
)
F403 = Rule(
    "F403",
    "too-large",
    what="The file is longer, or has more elements or chunks, than any algorithm needs.",
    why="No runtime loads such a file, and reading it would take all memory.",
    example="a file of 200 MiB; nchunksperloop of two thousand million",
    instead="Use fewer chunks, instances or ranks, or write one file for each size range.",
)
F404 = Rule(
    "F404",
    "unreadable-file",
    what="The file does not exist or cannot be read.",
    why="There is nothing to read otherwise.",
    example='load("no-such-file.xml")',
    instead="Check the path and the permissions.",
)
F405 = Rule(
    "F405",
    "wrong-element",
    what="An element, or text, stands where it does not belong: an <algo> holds <gpu>s, a <gpu> "
    "holds <tb>s, a <tb> holds <step>s, and nothing else.",
    why="An unknown element may be a misspelt step; leaving it out changes the algorithm.",
    example='<tb ...><stepp s="0" type="s" .../></tb>',
    instead="Correct the element's name or move it to where it belongs.",
)
F406 = Rule(
    "F406",
    "missing-attribute",
    what="An element lacks an attribute that gives it its meaning.",
    why="The runtimes refuse such a file at start, all algorithms with it.",
    example='<step s="0" type="s" srcbuf="i" srcoff="0"/>, without cnt and the rest',
    instead="Add the attribute.",
)
F407 = Rule(
    "F407",
    "not-an-integer",
    what="A number is no decimal integer of 32 bits (sizes in bytes: 64 bits).",
    why="The runtimes' parsers take what they can of other text and go on with a wrong number.",
    example='cnt="1.5", chan="0x2", srcoff="99999999999"',
    instead="Write a plain decimal integer.",
)
F408 = Rule(
    "F408",
    "unknown-word",
    what="A type is none of s r rcs rrs rrc rrcs cpy re nop, a buffer none of i o s, or a "
    "protocol none of Simple LL LL128.",
    why="What a step with another type or buffer does is not known, so it can't be checked or run.",
    example='type="recv", srcbuf="x", proto="ll", or type="res_add", which has no meaning here',
    instead="Use one of the words that are listed.",
)
F409 = Rule(
    "F409",
    "unknown-collective",
    what="`coll` names no collective that has a fixed meaning.",
    why="Without what the ranks must hold at the end, nothing can be proven of the algorithm.",
    example='coll="allredcue"; coll="alltoallv", whose sizes are known only at the call',
    instead="Correct the name, or pass the collective: read(file, collective=...).",
)
F410 = Rule(
    "F410",
    "collective-needed",
    what='The file has coll="custom", and the caller does not say what the collective is.',
    why="The file says only what each GPU does, not what shall come of it.",
    example='read("alltonext.xml"), where the file has coll="custom"',
    instead="Pass it: sley.load(file, collective=sley.AllToNext(ranks=16, chunks=2)), or with "
    "--collective FILE.py the program whose collective it is.",
)
F411 = Rule(
    "F411",
    "chunks-per-loop",
    what="nchunksperloop is not the number of chunks of the call's whole buffer: it is below 1, "
    "or for AllGather, ReduceScatter and AllToAll no multiple of ngpus.",
    why="A chunk is the call's size divided by it; otherwise ranks' parts don't begin at chunks.",
    example='coll="allgather" ngpus="8" nchunksperloop="12"',
    instead="Give nchunksperloop the number of chunks of the larger buffer.",
)
F412 = Rule(
    "F412",
    "gpu-ids",
    what="The <gpu>s do not have the ids 0 to ngpus - 1, each once.",
    why="A GPU's id is its rank. A rank without a program makes its peers wait for ever.",
    example='ngpus="8" with seven <gpu> elements, or two of them with id="3"',
    instead="Add the missing <gpu>s, remove doubles, or correct ngpus.",
)
F413 = Rule(
    "F413",
    "block-ids",
    what="The <tb>s of a GPU do not have the ids 0, 1, 2 ..., each once.",
    why="Waits name blocks by id, and the runtimes start as many blocks as the ids promise.",
    example="blocks 0, 1, 3",
    instead="Renumber the blocks, and the depid of the steps that wait for them.",
)
F414 = Rule(
    "F414",
    "step-order",
    what="The steps of a block do not stand in the order s = 0, 1, 2 ...",
    why="The runtimes run them as they stand and number them anew: waits then mean other steps.",
    example='s="0", s="2", s="1"',
    instead="Put the steps in order, or renumber them and the deps of the steps that wait.",
)
F415 = Rule(
    "F415",
    "dangling-wait",
    what="depid and deps name a block or a step that the GPU does not have.",
    why="The step would wait for ever, or not at all.",
    example='depid="4" deps="7", where block 4 has 5 steps',
    instead="Correct depid and deps; both are -1 where a step waits for nothing.",
)
F416 = Rule(
    "F416",
    "wait-for-itself",
    what="A step waits for itself or for a later step of its own block.",
    why="A block runs its steps one after the other, so the block would never go on.",
    example='in block 2: s="1" depid="2" deps="3"',
    instead="Name a step of another block, or an order that has no circle.",
)
F417 = Rule(
    "F417",
    "bad-peer",
    what="send or recv names the GPU itself, or one that the algorithm does not have.",
    why="There is no connection to a GPU that doesn't exist, nor from a GPU to itself.",
    example='<gpu id="2"> ... <tb id="0" send="2" ...>; send="8" with ngpus="8"',
    instead="Correct the peer; local moves are cpy and re steps.",
)
F418 = Rule(
    "F418",
    "no-peer",
    what="A block has sending steps and no send peer, or receiving steps and no recv peer.",
    why="The runtimes refuse the file, or run past the end of a table.",
    example='<tb id="0" send="-1" recv="1" chan="0"> with a step of type="s"',
    instead="Give the block the peer that the step is meant for.",
)
F419 = Rule(
    "F419",
    "channel-range",
    what="chan is not from 0 to nchannels - 1.",
    why="Channels past nchannels are never connected: the first message hangs.",
    example='nchannels="2" and chan="2"',
    instead="Raise nchannels or correct chan.",
)
F420 = Rule(
    "F420",
    "outside-buffer",
    what="A step's chunks, from the offset on, do not lie inside the buffer.",
    why="The runtimes check the first chunk at most; the rest reads or overwrites others' memory.",
    example='srcbuf="i" srcoff="7" cnt="2", where the input has 8 chunks',
    instead="Correct the offset or cnt, or the buffer's size (s_chunks, nchunksperloop).",
)
F421 = Rule(
    "F421",
    "bad-count",
    what="A step that moves data moves no chunk.",
    why="A step of no chunks moves nothing, yet its peer expects a message.",
    example='type="s" cnt="0"',
    instead="Give cnt the number of chunks, or make the step a nop.",
)
F422 = Rule(
    "F422",
    "value-range",
    what="A value is outside its range: ngpus and nchannels are at least 1, flags are 0 or 1, "
    "sizes are not negative.",
    why="Outside them the runtimes refuse the file or read past the end of their tables.",
    example='hasdep="2", ngpus="0", s_chunks="-1"',
    instead="Give the attribute a value of its range.",
)
F424 = Rule(
    "F424",
    "other-collective",
    what="A collective that the caller passes has not as many ranks as the file has GPUs.",
    why="The file's algorithm is for its own number of ranks only.",
    example='read(file, collective=AllReduce(ranks=4)), where the file has ngpus="8"',
    instead="Pass a collective for the file's ranks.",
)
F430 = Rule(
    "F430",
    "wait-without-hasdep",
    what='Remark: a step that others wait for does not carry hasdep="1".',
    why="Without it the runtimes publish no progress at that step: who waits goes on only after "
    "a later step of that block that has it, or never.",
    example='depid="2" deps="1", while step 1 of block 2 has hasdep="0"',
    instead="Read the file and save it again: sley sets hasdep where it is needed.",
)
F431 = Rule(
    "F431",
    "ignored",
    what="Remark: an attribute or <copy> element was left out of account.",
    why="It is an extension of one tool, and has no part in what the steps do.",
    example='redop="nop" on <algo>; <copy i_off="0" o_off="0"/>',
    instead="Nothing need be done; saved again, the file has it no more.",
)
F432 = Rule(
    "F432",
    "idle-nop",
    what="Remark: a nop that waits for nothing, or that nothing follows, was left out.",
    why="It changes nothing, but the runtimes count steps wrongly after a nop without a wait.",
    example='type="nop" depid="-1"; a nop as the last step of a block',
    instead="Read the file and save it again.",
)
F433 = Rule(
    "F433",
    "declared-sizes",
    what="Remark: i_chunks or o_chunks are not what the collective gives the rank.",
    why="The executor refuses steps whose offset is past the declared size.",
    example='coll="allreduce" nchunksperloop="8" with i_chunks="4"',
    instead="Read the file and save it again, or correct the sizes.",
)
F434 = Rule(
    "F434",
    "assumed",
    what="Remark: the file doesn't say something that sley must know, so it was assumed.",
    why="MSCCL XML has no root, and `inplace` may be missing, or allow both.",
    example='coll="broadcast", whose root the file doesn\'t name',
    instead="Say it: read(file, root=..., in_place=...).",
)
F435 = Rule(
    "F435",
    "needless-wait",
    what="Remark: a wait for an earlier step of the same block was left out.",
    why="Steps of a block run in order, so it holds anyway.",
    example='in block 2: s="3" depid="2" deps="1"',
    instead="Nothing need be done; saved again, the file has it no more.",
)
F440 = Rule(
    "F440",
    "unknown-target",
    what="A file is to be written for a target that is none of msccl, executor and rccl.",
    why="They differ in limits, spellings and in the operations that they run.",
    example='write(plan, "nccl")',
    instead='Name one of them: write(plan, "executor").',
)
F441 = Rule(
    "F441",
    "no-such-order",
    what="A plan in instruction-major order is to be written as MSCCL XML, which has tile-major "
    "plans alone.",
    why="Its interpreter runs all steps for a tile, then the next tile. A plan that was ordered "
    "instruction by instruction may hang there.",
    example="saving a plan of the task-level schedule as XML",
    instead="Write the tile-major plan of the same program: --loop-order tile, or "
    'sley.compile(..., loop_order="tile").',
)
F442 = Rule(
    "F442",
    "several-connections",
    what="A block has two send peers, two receive peers or two channels, for which MSCCL XML has "
    "no place.",
    why="They are attributes of <tb>, not of the step.",
    example="a block that sends to rank 1 and later to rank 2",
    instead="Give each pair of peers and channel a block of its own, as sley.compile does with "
    "--allocate connection and without --max-blocks.",
)
F443 = Rule(
    "F443",
    "no-such-collective",
    what="The target does not know the plan's collective by name, with the same meaning.",
    why="A runtime picks a file by the call's collective, and runs it whatever it computes.",
    example='write(plan of AllToNext, "executor"), which has no custom collectives',
    instead='Write for "msccl", which has custom collectives, or use a standard collective.',
)
F444 = Rule(
    "F444",
    "too-many-steps",
    what="A block has more steps than the target's table; each wait but one takes a nop step.",
    why="The runtimes' tables have a fixed size: they refuse the file at start.",
    example="a ring over 64 ranks with one block a rank, 126 steps, for the executor's 64",
    instead="Spread the work over more channels, use fewer instances, or write for msccl (256).",
)
F445 = Rule(
    "F445",
    "too-many-blocks",
    what="A GPU or a channel has more blocks than the target's tables, or a wait names a block "
    "beyond those that it can.",
    why="Past the limits the runtimes refuse the file, or wait for a block of another number.",
    example="an AllToAll over 64 ranks with a block for each peer and direction, for rccl",
    instead="Use fewer instances or blocks that serve both directions, or spread over channels.",
)
F446 = Rule(
    "F446",
    "too-many-channels",
    what="A plan has a channel beyond the target's last.",
    why="Channels past the limit don't exist in the runtime.",
    example="40 parallel instances, each on a channel of its own, for the executor's 32",
    instead="Use fewer instances, or give several connections one channel.",
)
F447 = Rule(
    "F447",
    "count-limit",
    what="A step moves more chunks than the target can in one.",
    why="The runtimes refuse the file. To cut a message into several takes more slots of the "
    "connection and could make a plan hang that was proven not to, so the writer doesn't.",
    example="a send of 128 chunks at once",
    instead="Use fewer, larger chunks, or transfers of fewer chunks in the program.",
)
F448 = Rule(
    "F448",
    "offset-limit",
    what="A step's offset does not fit the target's field.",
    why="The runtimes store offsets in 16 bits and check the first chunk at most.",
    example="chunk 40,000 of an AllToAll over 1,024 ranks",
    instead="Use fewer chunks.",
)
F449 = Rule(
    "F449",
    "shared-connection",
    what="Two blocks of a GPU send, or two receive, on one (peer, channel).",
    why="Two blocks on one connection take each other's messages; the runtimes don't check.",
    example="blocks 0 and 3 of rank 0 both send to rank 1 on channel 0",
    instead="Give one of the blocks another channel, at both ends.",
)
F450 = Rule(
    "F450",
    "too-many-nodes",
    what="A GPU's part of the file has more XML elements than the target's parser has room for, "
    "or an element more children.",
    why="The runtimes' parsers have fixed tables and write past their end.",
    example="60 blocks of 64 steps and 256 GPUs",
    instead="Use fewer instances or chunks.",
)
F451 = Rule(
    "F451",
    "unwritable-value",
    what="A name is no XML text or too long, a size is negative, or min_bytes is greater than "
    "max_bytes.",
    why="The runtimes' parsers cut longer values, and an empty size range is never picked.",
    example="write(plan, target, min_bytes=2048, max_bytes=1024)",
    instead="Correct the value; the name is an argument of its own: write(plan, target, name=...).",
)
F452 = Rule(
    "F452",
    "malformed-plan",
    what="The plan's tables contradict one another, or an instruction names an operation, chunk, "
    "peer or channel that does not exist, or waits in a circle.",
    why="No file could mean what such a plan says.",
    example="a send without a peer; blocks out of the ranks' order; two nops that wait for each "
    "other",
    instead="Run sley verify on the plan; it names what is wrong.",
)
F453 = Rule(
    "F453",
    "no-such-protocol",
    what="A plan whose protocol is Direct is to be written as MSCCL XML, which has Simple, LL and "
    "LL128 alone.",
    why="Its runtimes copy every message through a FIFO; they can't read a peer's buffer.",
    example='write(sley.compile(ring, protocol="direct"), "msccl")',
    instead="Compile the program with another protocol: --protocol simple, or "
    'sley.compile(..., protocol="simple").',
)
F460 = Rule(
    "F460",
    "unknown-format",
    what="A file's name ends in nothing that says its format: .xml is MSCCL XML, .cu and .cpp are "
    "kernels, which are only written.",
    why="sley doesn't guess formats from the text.",
    example='save(plan, "plan.txt")',
    instead="Give the file a name that ends in .xml, or .cu for kernels.",
)
F461 = Rule(
    "F461",
    "unwritable-file",
    what="The folder does not exist, or the file cannot be written there.",
    why="The file is written beside its place and then moved there, so that it is whole or absent.",
    example='save(plan, "no-such-folder/plan.xml")',
    instead="Make the folder, or check the permissions and the space on the disk.",
)
