"""Rules of files that are recognised by their content, and of synthesisers' schedules (F550 to
F569)."""

from __future__ import annotations

from sley.errors.diagnostic import Rule

F550 = Rule(
    "F550",
    "other-kind-of-file",
    what="The file is of another kind than the command takes.",
    why="sley looks at a file's content to say what it is. To read it as something else would only "
    "give messages about its first line.",
    example="sley verify topo.xml  # a topology",
    instead="Give a file of the expected kind.",
)
