"""Pictures: drawings of small programs, plans and clusters.

Each function returns a `Picture`, whose `save` writes a file.

plans.py      the chunks of a program, the instructions of a plan, its thread blocks
topology.py   a cluster's GPUs, switches, cards and links
trees.py      the trees of a root on a cluster
canvas.py     boxes, lines and texts as SVG or PNG
"""

from sley.report.pictures.canvas import Picture
from sley.report.pictures.plans import block_picture, chunk_picture, instruction_picture
from sley.report.pictures.topology import topology_picture
from sley.report.pictures.trees import tree_picture

__all__ = [
    "Picture",
    "block_picture",
    "chunk_picture",
    "instruction_picture",
    "topology_picture",
    "tree_picture",
]
