"""Rules of ResCCLang: requirements on texts in ResCCL's language (L143 to L156)."""

from sley.errors import Rule

L143 = Rule(
    "L143 syntax, formerly L141 L142 L144 L145",
    what="The text does not follow the grammar: it has a character, an indentation, a word or a "
    "nesting that the language does not have.",
    why="Statements are `name = expression`, `for name in range(...):` and `transfer(...)`, below "
    "the header `ResCCLAlgo(...):` (ResCCL, figure 14). Indentation defines what a loop repeats, "
    "so all lines of a block start with the same characters. The depth is limited, so that no text "
    "can exhaust the compiler.",
    example="for r in 8:",
    instead="Write the expected text. A statement ends with its line, except inside parentheses, "
    "and a string with the quote with which it starts.",
)
L146 = Rule(
    "L146 undefined-name",
    what="A variable is read before it is assigned.",
    why="It has no value. A loop without iterations assigns nothing.",
    example="transfer(rank, 1, 0, 0, recv)  # without a line rank = ...",
    instead="Assign it first, or correct its spelling; the header's parameters are variables too.",
)
L150 = Rule(
    "L150 bad-header, formerly L147 L148 L149 L151 L152",
    what="A parameter of the header is unknown, repeated, missing or invalid, contradicts another "
    "one, or is assigned in the body.",
    why="nRanks and OpType define the collective; a parameter without effect would leave another "
    "value in effect. Numbers are positive integers, names are strings, all nodes have the same "
    "number of GPUs, and the GPUs of a node share its cards evenly (ResCCL, figure 14).",
    example='ResCCLAlgo(nRanks="32", ...)',
    instead="Use each parameter of figure 14 at most once, with a value of the expected type and "
    "range; give variables other names.",
)
L153 = Rule(
    "L153 bad-arithmetic, formerly L154 L155",
    what="A number does not fit into 32 bits, a divisor is zero, or the step of a range is zero.",
    why="Ranks, steps and chunks have 32 bits: a larger number is a mistake, and would overflow "
    "later. A division by zero has no result, and a loop with the step zero no end.",
    example="step = 100000 * 100000",
    instead="Keep every number, also intermediate results, between -2147483648 and 2147483647, and "
    "divisors and steps other than zero in every iteration.",
)
L156 = Rule(
    "L156 too-much-work",
    what="The loops of a program have more iterations than any algorithm needs.",
    why="A program for thousands of GPUs has a few million transfers. Beyond the limit, reading "
    "would take minutes and exhaust the memory.",
    example="for a in range(1000000000):",
    instead="Correct the bounds of the loops.",
)
