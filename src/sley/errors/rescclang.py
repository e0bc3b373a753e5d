"""Rules of ResCCLang's text: what a program of ResCCL's own language may say (L140 to L159)."""

from sley.errors.diagnostic import Rule

L140 = Rule(
    "L140",
    "unreadable-text",
    what="The text of a program is not there, is not UTF-8, or is larger than any program.",
    why="There is nothing that could be read as a program.",
    example="a picture, saved as hm.resccl",
    instead="Give a file of UTF-8 text of at most 4 MB; loops make large algorithms short.",
)
L141 = Rule(
    "L141",
    "bad-character",
    what="A character that the language doesn't have, or a string without an end.",
    why="ResCCLang knows names of letters, digits and _, whole numbers, strings in quotes, and the "
    "signs + - * / // % ( ) , : = (ResCCL, figure 14).",
    example="step = 1.5",
    instead="Remove the character; a string ends in its line, with the quote that it began with.",
)
L142 = Rule(
    "L142",
    "bad-indentation",
    what="A line is indented in a way that fits no block around it.",
    why="Indentation says which statements a loop repeats; tabs and spaces have no fixed ratio, so "
    "a line must begin with exactly the same ones as its neighbours.",
    example="a line of 8 spaces after a line of one tab",
    instead="Indent all statements of a block alike, with spaces alone or with tabs alone.",
)
L143 = Rule(
    "L143",
    "syntax",
    what="Something stands where the grammar has something else.",
    why="The grammar (ResCCL, figure 14) has assignments, for loops over range, and transfers.",
    example="for r in 8:",
    instead="Write what was expected. A statement ends with its line, except inside parentheses.",
)
L144 = Rule(
    "L144",
    "nested-too-deep",
    what="Blocks or parentheses are nested deeper than any program needs.",
    why="The depth is bounded, so that no text can exhaust the compiler.",
    example="((((((...))))))",
    instead="Give parts of the expression names, or write fewer loops within one another.",
)
L145 = Rule(
    "L145",
    "unknown-word",
    what="A statement begins with a word that the language doesn't have.",
    why="Statements are `name = expression`, `for name in range(...):` and `transfer(...)`; a "
    "program begins with `ResCCLAlgo(...):` (ResCCL, figure 14).",
    example="send(0, 1, 0, 0, recv)",
    instead="Use one of these words, in this spelling; a word of the language names no variable.",
)
L146 = Rule(
    "L146",
    "undefined-name",
    what="A variable is read that nothing has assigned.",
    why="It has no value. A loop that runs no time assigns nothing.",
    example="transfer(rank, 1, 0, 0, recv)  # without a line rank = ...",
    instead="Assign it first, or mend its spelling; parameters of the header are variables too.",
)
L147 = Rule(
    "L147",
    "unknown-parameter",
    what="A parameter is given that the header doesn't have.",
    why="It would have no effect, and the one that was meant would keep its default.",
    example="ResCCLAlgo(nRank=32, ...)",
    instead="Use nRanks, nChannels, nWarps, AlgoName, OpType, GPUPerNode and NICPerNode "
    "(ResCCL, figure 14).",
)
L148 = Rule(
    "L148",
    "repeated-parameter",
    what="A parameter is given twice in the header.",
    why="Which one is meant can't be known.",
    example="ResCCLAlgo(nRanks=32, nRanks=16, ...)",
    instead="Remove one of them.",
)
L149 = Rule(
    "L149",
    "missing-parameter",
    what="The header lacks a parameter that has no default.",
    why="nRanks and OpType say what the algorithm has to bring about.",
    example='ResCCLAlgo(OpType="Allreduce"):',
    instead="Add the parameter to the header, or give it when the text is read.",
)
L150 = Rule(
    "L150",
    "bad-parameter",
    what="A parameter of the header has a value that it can't have.",
    why="Numbers of ranks, channels, warps, GPUs and cards are whole and positive; names are "
    "strings (ResCCL, figure 14).",
    example='ResCCLAlgo(nRanks="32", ...)',
    instead="Give a value of the kind and in the range that was expected.",
)
L151 = Rule(
    "L151",
    "contradictory-header",
    what="Parameters of the header contradict one another.",
    why="All nodes have the same number of GPUs, and the GPUs of a node share its network cards "
    "evenly.",
    example="ResCCLAlgo(nRanks=30, GPUPerNode=8, ...)",
    instead="Choose nRanks as a multiple of GPUPerNode, and GPUPerNode as one of NICPerNode.",
)
L152 = Rule(
    "L152",
    "assigned-parameter",
    what="The body assigns to a parameter of the header.",
    why="The header and the body would say different things about one cluster.",
    example="nRanks = 16  # in the body",
    instead="Read the parameter, or use another name for the variable.",
)
L153 = Rule(
    "L153",
    "number-out-of-range",
    what="A number does not fit into 32 bits.",
    why="Ranks, steps and chunks are 32-bit; what is beyond is a slip, and would overflow later.",
    example="step = 100000 * 100000",
    instead="Keep every number, intermediate results too, from -2147483648 to 2147483647.",
)
L154 = Rule(
    "L154",
    "division-by-zero",
    what="A number is divided by zero, or its remainder by zero is asked for.",
    why="The result has no value.",
    example="offset % (nNodes - 1)  # with nNodes = 1",
    instead="Make sure that the divisor is not zero at any iteration.",
)
L155 = Rule(
    "L155",
    "endless-range",
    what="A loop runs over a range whose step is zero.",
    why="It would never end.",
    example="for r in range(0, 8, 0):",
    instead="Give a positive or a negative step, or leave it out.",
)
L156 = Rule(
    "L156",
    "too-much-work",
    what="The loops of a program run for longer than any algorithm needs.",
    why="A program for thousands of GPUs has some million transfers; beyond the bound, reading it "
    "would take minutes and exhaust the memory.",
    example="for a in range(1000000000):",
    instead="Correct the bounds of the loops.",
)
