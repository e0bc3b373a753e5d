"""NCCL: what it would run for a call, and how long that takes.

choice.py    its own choice of algorithm, protocol and channels
graphs.py    the rings and trees that it makes of a machine
runs.py      simulations of its choices
tables.py    the tables that nccl-tests prints
"""
