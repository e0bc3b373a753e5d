"""Rules of files that are recognised by their content, and of synthesisers' schedules (F550 to
F560)."""

from __future__ import annotations

from sley.errors import Rule

F550 = Rule(
    "F550 other-kind-of-file, formerly T609",
    what="The file is of a kind that the command does not accept, or of none that sley knows.",
    why="sley recognises files by content; messages about another kind would mean nothing.",
    example="sley verify topo.xml  # a topology",
    instead="Give a file of the expected kind.",
)
F551 = Rule(
    "F551 damaged-schedule, formerly F553",
    what="The file is not well-formed JSON or XML; a part of the schedule is missing, misplaced, "
    "or of another type; or a send doesn't have the form that its synthesiser writes, or names a "
    "node or a chunk that doesn't exist.",
    why="What is missing could be any part of the algorithm; a guess about a send would change it.",
    example='{"1-Epoch_Duration": 2.5e-07}  # without the flows',
    instead="Write the file again with its synthesiser, or correct the named entry.",
)
F554 = Rule(
    "F554 incomplete-schedule, formerly F558",
    what="The schedule leaves out a GPU, does not bring a chunk to a GPU that must get it, leaves "
    "a rank's data out of a sum, or has a tree that doesn't lead from its root to every GPU once.",
    why="A collective includes all ranks, and a tree brings its part of the root's data to all "
    "other GPUs. TE-CCL treats node 0 of an NDv2 cluster as a switch. With two chassis it is a "
    "GPU, which then neither sends nor receives.",
    example="a TE-CCL schedule for 2 NDv2 with the chunks of 15 GPUs, node 0 without one",
    instead="Solve again with all GPUs.",
)
F555 = Rule(
    "F555 copying-switch",
    what="The schedule needs a switch that copies: a chunk enters once and leaves to several GPUs.",
    why="A message of a plan has one destination. Sent once for each destination, the chunk "
    "crosses the link to the switch several times, so the schedule's time doesn't hold.",
    example="Chunk 0 from 4 over 4->5 and 4->6, both in epoch 0 via switches 0",
    instead="Solve again with switch_copy off, or import it with each copy as its own message: "
    "sley import FILE --allow multicast -o FILE.py.",
)
F556 = Rule(
    "F556 early-send",
    what="A GPU sends a chunk before it has arrived there, or without ever getting it.",
    why="The GPU would send other data.",
    example="3->4 in epoch 2, but the chunk arrives at 3 in epoch 5",
    instead="Write the file again with its synthesiser.",
)
F557 = Rule(
    "F557 wrong-claim",
    what="The file's claims about its schedule differ from the result of following the schedule.",
    why="One of the two is wrong: the schedule may be changed, or made for other links.",
    example="3-Epochs_Required: 40, but the last chunk arrives after 43 epochs",
    instead="Write the file again with its synthesiser.",
)
F560 = Rule(
    "F560 not-in-schedule, formerly F561",
    what="An import asks for something that this schedule doesn't have: a fault that schedules of "
    "this synthesiser can't have, or a machine with unknown links or rates.",
    why="Only TE-CCL's schedules can have such faults: switches that copy, and GPUs that are left "
    "out. Files of ForestColl and TACCL have no rates; for files of TE-CCL, sley recognises NDv2 "
    "and DGX-2 by the links that the flows use.",
    example="sley import trees.xml --allow multicast  # trees of ForestColl",
    instead="Omit the option.",
)
