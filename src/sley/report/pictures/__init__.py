"""Pictures: drawings of small programs, plans and clusters.

Each function returns a `Picture`, whose `save` writes a file.

dags.py       the chunks of a program, the instructions of a plan
blocks.py     thread blocks with their instructions, side by side
topology.py   a cluster's GPUs, switches, cards and links
lattice.py    where the GPUs of meshes and tori are
grid.py       graphs in lanes and columns, and the curves between their nodes
canvas.py     boxes, lines and texts as SVG or PNG
words.py      labels and legends
"""

from sley.report.pictures.blocks import block_picture
from sley.report.pictures.canvas import Picture
from sley.report.pictures.dags import chunk_picture, instruction_picture
from sley.report.pictures.topology import topology_picture

__all__ = ["Picture", "block_picture", "chunk_picture", "instruction_picture", "topology_picture"]
