"""Rules of the verifier: requirements on every plan before it runs (V2xx)."""

from sley.errors import Rule

V201 = Rule(
    "V201 malformed-plan, formerly F452 P804 R510 S706",
    what="A plan's tables contradict one another: a rank, buffer, index, count, peer or wait does "
    "not exist, or the ends of a connection don't match.",
    why="An engine would read or write other memory, or leave messages for a later call; and such "
    "a plan has no time, no picture and no file.",
    example='<step type="s" srcbuf="i" srcoff="8" .../> with i_chunks="8"',
    instead="Correct the row, or the program or file that the plan comes from; a compiled plan "
    "never has such rows. `sley.verify(plan)` names them.",
)
V202 = Rule(
    "V202 broken-connection, formerly F449",
    what="A connection has two sending or two receiving thread blocks, or its two ends disagree on "
    "the number of messages or on the count of one of them.",
    why="A connection is a FIFO with one writer and one reader (MSCCLang 5): it keeps the order.",
    example="two blocks of rank 0 that both send to rank 1 on channel 0",
    instead="Give every connection one block at each end, and as many receives as sends, in the "
    "same order and with the same counts.",
)
V203 = Rule(
    "V203 hang, formerly P803 S703",
    what="With these slots, some instructions wait for one another in a cycle: a deadlock.",
    why="A send waits for a free slot, a receive for a message, an instruction for those before it "
    "in its block and for its waits. The network is determinate, so the plan hangs always or "
    "never. It has no time to simulate and no order to draw.",
    example="rank 0 sends three chunks before it receives one, and so does rank 1, with 2 slots",
    instead="Let receives come earlier in their blocks, use more blocks or channels, compile for "
    "the available slots (slots=, --slots), or use a protocol with more slots.",
)
V204 = Rule(
    "V204 data-race",
    what="Two instructions of a rank access a chunk, at least one writes, and nothing orders them.",
    why="Their order would depend on timing: the result is right in one run, wrong in the next. A "
    "message that other ranks only pass on orders the same chunk at both of its ends, but no "
    "others: an engine may move it in pieces, and the first come back before the last has left.",
    example="block 0 receives into in[3] while block 1 sends in[3], without a wait between them",
    instead="Add a wait on the earlier instruction, or put both into the same block; or correct "
    "the index, if the two should not access the same chunk.",
)
V205 = Rule(
    "V205 uninitialized-read",
    what="An instruction reads a chunk that nothing has written, and the value reaches a chunk "
    "that the collective promises; with varying counts, any read of such a chunk.",
    why="At the start output and scratch have no data. A chunk without data has no count either.",
    example='<step type="s" srcbuf="s" srcoff="0" .../> before anything was received there',
    instead="Write the chunk first, or read the intended chunk.",
)
V206 = Rule(
    "V206 wrong-result",
    what="At the end an output chunk does not have the value that the collective promises.",
    why="A chunk must be exactly the input chunk, or the reduction of exactly the input chunks, in "
    "the postcondition (MSCCLang 3.2). A reduction counts every rank once.",
    example="an AllReduce over 4 ranks in which rank 3 never sends",
    instead="Let exactly the expected inputs reach the chunk, each of them once.",
)
V208 = Rule(
    "V208 overlapping-operands, formerly F455 K520",
    what="Source and destination of an instruction share some chunks, but are not the same range.",
    why="An instruction's threads move elements in no fixed order: some are overwritten unread.",
    example='<step type="cpy" srcbuf="i" srcoff="0" dstbuf="i" dstoff="1" cnt="2" .../>',
    instead="Move the chunks through scratch, or one at a time.",
)
V210 = Rule(
    "V210 dead-instruction",
    what="A remark: an instruction does not contribute to the result. It copies chunks onto "
    "themselves, or reads chunks that nothing has written, and the values reach no promised chunk.",
    why="The plan is correct, but the instruction takes time, and may be a mistake.",
    example='an AllGather in place with <step type="cpy" srcbuf="i" srcoff="0" dstbuf="o" '
    'dstoff="0" .../> on rank 0',
    instead="Remove the instruction, or correct its operands.",
)
V219 = Rule(
    "V219 varying-place",
    what="A plan of varying counts writes a chunk to the place of another chunk.",
    why="The place has room for its own chunk. Another one may be longer.",
    example="rank 1 of an AllToAllV receives a chunk for rank 2 into its output, and forwards it",
    instead="Use scratch, whose chunks have room for every count.",
)
V221 = Rule(
    "V221 vacuous-proof",
    what="No call can meet all conditions under which a file is proven.",
    why="The runtime doesn't check these conditions: it runs the file for calls that do not meet "
    "them, and the proof says nothing about any of these.",
    example="an AllGather in place for MSCCL++ in which a port of rank 1 reads the input: that is "
    "not at the start of its allocation, where the executor's ports read",
    instead="Change what needs one of the conditions. In place, let ports and other ranks access "
    "the larger buffer, at the rank's part; or use scratch, or buffers out of place.",
)
V222 = Rule(
    "V222 not-scaled-once",
    what="A call can't multiply each input once by a factor, where the plan reads it first.",
    why="NCCL's averages of floats and its PreMulSum multiply each rank's input as the rank first "
    "reads it. An instruction multiplies all chunks of an operand or none.",
    example="a send of two chunks of the input, in place, of which one holds a sum already",
    instead="Use instructions of one chunk there, or multiply the input before the call.",
)
V223 = Rule(
    "V223 no-certificate",
    what="A certificate is asked for a plan of a kind that has none.",
    why="sley-check knows plans of messages. It has no rules for one-sided plans, or for groups "
    "whose members read one another's memory.",
    example="sley verify plan.json --certificate plan.cert",
    instead="Rely on the proof of sley verify; or certify a plan of messages, for groups with "
    "Simple.",
)
V211 = Rule(
    "V211 relaxed-order",
    what="Only relaxed signals order two accesses to a chunk of a one-sided plan.",
    why="A relaxed signal orders execution, but publishes no memory: the second rank may read old "
    "data, or the first write may arrive after the second write.",
    example='"put", "nop", "rlxsignal" on one rank, and "rlxwait", "nop", "copy" on the other',
    instead="Use signal and wait where data passes; relaxed ones only show that a call has begun.",
)
V212 = Rule(
    "V212 unbalanced-counter",
    what="In a one-sided plan a counter has more or fewer signals than waits.",
    why="With fewer signals the last wait never ends; with more, a later one ends too early.",
    example="rank 0 signals rank 1 twice, and rank 1 waits once",
    instead="Let each signal have its wait, on the other end of its channel or on its semaphore.",
)
V213 = Rule(
    "V213 shared-counter",
    what="Several blocks of a rank wait for one counter, or use one port; or two threads of a "
    "block do so, without a join in between.",
    why="Timing may decide which of them continues, or whose data the port moves first. Semaphores "
    "can give blocks an order, but sley doesn't prove that order, and refuses these plans, too.",
    example="two blocks of rank 0 that both wait for channel 0",
    instead="Give each block its own channels and semaphores, or put a nop between two waits.",
)
V214 = Rule(
    "V214 packets-written-twice",
    what="Packets of a one-sided plan are written twice in a call.",
    why="A packet's flag is the call's number, so a reader of the second data may take the first.",
    example="two ppkt of one call into the same chunk of scratch",
    instead="Give every message of a call its own chunks of scratch.",
)
V215 = Rule(
    "V215 outside-the-call",
    what="Memory of a rank may be accessed before its call or after it, or in two calls at once.",
    why="A rank may be a call ahead of another. Before and after a call the caller uses the input "
    "and the output; scratch still serves the previous call.",
    example='a put into the output of a rank without a "wait" that shows that it has begun',
    instead="Exchange signals at the start and at the end of the call with the ranks whose memory "
    "is accessed, or use two copies of scratch.",
)
V216 = Rule(
    "V216 packets-over-data",
    what="A one-sided plan writes plain data into chunks of scratch from which it reads packets.",
    why="Plain data may look like a packet: a reader would accept it, now or in a later call.",
    example='"copy" into chunk 0 of scratch, and "upkt" from packet 0',
    instead="Keep packets and plain data in chunks of scratch of their own.",
)
