"""Rules of the verifier: what every plan must hold before anything runs it (V2xx)."""

from sley.errors.diagnostic import Rule

V201 = Rule(
    "V201",
    "malformed-plan",
    what="A plan's tables contradict one another: a rank, buffer, index, count, peer or wait that "
    "does not exist.",
    why="An engine would read or write memory that is not its own.",
    example='<step type="s" srcbuf="i" srcoff="8" .../> with i_chunks="8"',
    instead="Correct the row; a compiled plan never has such rows.",
)
V202 = Rule(
    "V202",
    "broken-connection",
    what="A connection has two sending or two receiving thread blocks, or its two ends disagree on "
    "the number of messages or on the count of one of them.",
    why="A connection is a FIFO with one writer and one reader (MSCCLang 5); the k-th message "
    "received is the k-th sent.",
    example="two blocks of rank 0 that both send to rank 1 on channel 0",
    instead="Give every connection one block at each end, and as many receives as sends, in the "
    "same order and of the same counts.",
)
V203 = Rule(
    "V203",
    "hang",
    what="With the slots that the connections have, some instructions wait for one another in a "
    "circle.",
    why="A send waits for a free slot, a receive for a message, an instruction for those before it "
    "in its block and for its waits. Whether a plan hangs depends on nothing else: the network is "
    "determinate, so it hangs always or never.",
    example="rank 0 sends three chunks before it receives one, and so does rank 1, with 2 slots",
    instead="Let receives come earlier in their blocks, use more blocks or channels, compile with "
    "--slots for the slots that there are, or use a protocol with more of them.",
)
V204 = Rule(
    "V204",
    "data-race",
    what="Two instructions of a rank touch the same chunk, one of them writes it, and nothing "
    "orders them.",
    why="Which comes first would depend on timing: the result is right in one run and wrong in the "
    "next.",
    example="block 0 receives into in[3] while block 1 sends in[3], without a wait between them",
    instead="Add a wait on the earlier instruction, or put both into one block.",
)
V205 = Rule(
    "V205",
    "uninitialized-read",
    what="An instruction reads a chunk that nothing has written, and what comes of it reaches a "
    "chunk that the collective promises.",
    why="Output and scratch hold no data at the start.",
    example='<step type="s" srcbuf="s" srcoff="0" .../> before anything was received there',
    instead="Write the chunk first, or read the one that was meant.",
)
V206 = Rule(
    "V206",
    "wrong-result",
    what="At the end an output chunk does not hold what the collective promises.",
    why="A chunk must be exactly the input chunk, or exactly the reduction of the input chunks, "
    "that the postcondition names (MSCCLang 3.2); a reduction counts every rank once.",
    example="an AllReduce over 4 ranks in which rank 3 never sends",
    instead="Route the missing inputs to the chunk, and each of them once.",
)
V208 = Rule(
    "V208",
    "overlapping-operands",
    what="An instruction reads a range and writes one that shares some of its chunks, but not the "
    "same range.",
    why="Its threads move the elements in no order, so some would be read after they were "
    "overwritten.",
    example='<step type="cpy" srcbuf="i" srcoff="0" dstbuf="i" dstoff="1" cnt="2" .../>',
    instead="Move through scratch, or chunk by chunk.",
)
V209 = Rule(
    "V209",
    "standard-name",
    what="A plan's collective has the name of a standard one and promises something else.",
    why="Proofs, files, bus bandwidths and the plans of a communicator go by that name: what is no "
    "allreduce would be proven to be a correct one.",
    example='dataclasses.replace(collective, name="allreduce")',
    instead="Give the collective a name of its own.",
)
V210 = Rule(
    "V210",
    "dead-instruction",
    what="A remark: an instruction does nothing for the result. It copies chunks onto themselves, "
    "or reads chunks that nothing has written, and what comes of them reaches no promised chunk.",
    why="The plan is right, but it takes time for nothing, and may be meant otherwise.",
    example='an AllGather in place with <step type="cpy" srcbuf="i" srcoff="0" dstbuf="o" '
    'dstoff="0" .../> on rank 0',
    instead="Leave the instruction out, or correct its operands.",
)
V207 = Rule(
    "V207",
    "too-few-slots",
    what="A plan is to be verified for a number of slots that means nothing.",
    why="A connection holds at least one message.",
    example="sley verify plan.xml --slots 0",
    instead="Give a number of slots from 1.",
)
