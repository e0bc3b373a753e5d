"""Rules of ResCCLang: requirements on texts in ResCCL's language (L140 to L159)."""

from sley.errors.diagnostic import Rule

L140 = Rule(
    "L140",
    "unreadable-text",
    what="The text of a program does not exist, is not UTF-8, or is too large.",
    why="It cannot be read as a program.",
    example="a picture, saved as hm.resccl",
    instead="Give a file of UTF-8 text of at most 4 MB; loops make large algorithms short.",
)
L141 = Rule(
    "L141",
    "bad-character",
    what="The text has a character that the language does not have, or a string without an end.",
    why="ResCCLang has names (letters, digits and _), whole numbers, strings in quotes, and the "
    "signs + - * / // % ( ) , : = (ResCCL, figure 14).",
    example="step = 1.5",
    instead="Remove the character; a string ends on its line, with the quote with which it starts.",
)
L142 = Rule(
    "L142",
    "bad-indentation",
    what="The indentation of a line fits no block around it.",
    why="Indentation defines the statements that a loop repeats. Tabs and spaces have no fixed "
    "ratio, so all lines of a block must start with exactly the same characters.",
    example="a line of 8 spaces after a line of one tab",
    instead="Indent all statements of a block equally, with only spaces or only tabs.",
)
L143 = Rule(
    "L143",
    "syntax",
    what="The text does not follow the grammar.",
    why="The grammar (ResCCL, figure 14) has assignments, for loops over range, and transfers.",
    example="for r in 8:",
    instead="Write the expected text. A statement ends with its line, except inside parentheses.",
)
L144 = Rule(
    "L144",
    "nested-too-deep",
    what="Blocks or parentheses are nested too deeply.",
    why="The depth is limited, so that no text can exhaust the compiler.",
    example="((((((...))))))",
    instead="Assign parts of the expression to variables, or nest fewer loops.",
)
L145 = Rule(
    "L145",
    "unknown-word",
    what="A statement starts with a word that the language does not have.",
    why="Statements are `name = expression`, `for name in range(...):` and `transfer(...)`; a "
    "program starts with `ResCCLAlgo(...):` (ResCCL, figure 14).",
    example="send(0, 1, 0, 0, recv)",
    instead="Use one of these words in this spelling; the name of a variable can't be a word of "
    "the language.",
)
L146 = Rule(
    "L146",
    "undefined-name",
    what="A variable is read before it is assigned.",
    why="It has no value. A loop without iterations assigns nothing.",
    example="transfer(rank, 1, 0, 0, recv)  # without a line rank = ...",
    instead="Assign it first, or correct its spelling; the header's parameters are variables too.",
)
L147 = Rule(
    "L147",
    "unknown-parameter",
    what="The header does not have this parameter.",
    why="The parameter would have no effect, and the intended one would keep its default.",
    example="ResCCLAlgo(nRank=32, ...)",
    instead="Use nRanks, nChannels, nWarps, AlgoName, OpType, GPUPerNode and NICPerNode "
    "(ResCCL, figure 14).",
)
L148 = Rule(
    "L148",
    "repeated-parameter",
    what="The header has a parameter twice.",
    why="It is unclear which value is intended.",
    example="ResCCLAlgo(nRanks=32, nRanks=16, ...)",
    instead="Remove one of them.",
)
L149 = Rule(
    "L149",
    "missing-parameter",
    what="The header lacks a parameter that has no default.",
    why="nRanks and OpType define the collective of the algorithm.",
    example='ResCCLAlgo(OpType="Allreduce"):',
    instead="Add the parameter to the header, or pass it when you read the text.",
)
L150 = Rule(
    "L150",
    "bad-parameter",
    what="A parameter of the header has an invalid value.",
    why="Numbers of ranks, channels, warps, GPUs and cards are positive integers; names are "
    "strings (ResCCL, figure 14).",
    example='ResCCLAlgo(nRanks="32", ...)',
    instead="Give a value of the expected type and range.",
)
L151 = Rule(
    "L151",
    "contradictory-header",
    what="Parameters of the header contradict one another.",
    why="All nodes have the same number of GPUs, and the GPUs of a node share its network cards "
    "evenly.",
    example="ResCCLAlgo(nRanks=30, GPUPerNode=8, ...)",
    instead="Make nRanks a multiple of GPUPerNode, and GPUPerNode a multiple of NICPerNode.",
)
L152 = Rule(
    "L152",
    "assigned-parameter",
    what="The body assigns to a parameter of the header.",
    why="Header and body would describe different clusters.",
    example="nRanks = 16  # in the body",
    instead="Read the parameter, or use another name for the variable.",
)
L153 = Rule(
    "L153",
    "number-out-of-range",
    what="A number does not fit into 32 bits.",
    why="Ranks, steps and chunks have 32 bits; a larger number is a mistake, and would overflow "
    "later.",
    example="step = 100000 * 100000",
    instead="Keep every number, also intermediate results, between -2147483648 and 2147483647.",
)
L154 = Rule(
    "L154",
    "division-by-zero",
    what="The divisor of a division or remainder is zero.",
    why="The result is undefined.",
    example="offset % (nNodes - 1)  # with nNodes = 1",
    instead="Make sure that the divisor is not zero in any iteration.",
)
L155 = Rule(
    "L155",
    "endless-range",
    what="The step of a loop's range is zero.",
    why="The loop would never end.",
    example="for r in range(0, 8, 0):",
    instead="Give a positive or a negative step, or omit it.",
)
L156 = Rule(
    "L156",
    "too-much-work",
    what="The loops of a program have more iterations than any algorithm needs.",
    why="A program for thousands of GPUs has a few million transfers. Beyond the limit, reading "
    "would take minutes and exhaust the memory.",
    example="for a in range(1000000000):",
    instead="Correct the bounds of the loops.",
)
