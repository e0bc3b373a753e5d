"""Pictures of small programs, plans and clusters, for people.

Each function gives a `Picture`, which is written with `save`.

dags.py       the chunks of a program, the instructions of a plan
blocks.py     thread blocks with their instructions, side by side
topology.py   a cluster's ranks, switches and links
grid.py       nodes in lanes and layers, and the curves between them
canvas.py     boxes, lines and texts, as SVG or through matplotlib
words.py      labels and legends
"""

from sley.report.pictures.blocks import block_picture
from sley.report.pictures.canvas import Picture
from sley.report.pictures.dags import chunk_picture, instruction_picture
from sley.report.pictures.topology import topology_picture

__all__ = ["Picture", "block_picture", "chunk_picture", "instruction_picture", "topology_picture"]
