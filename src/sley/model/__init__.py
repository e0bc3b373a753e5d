"""Model: what a cluster can do with a plan: bounds, simulation, and NCCL's own choices.

bounds: lower bounds of a collective. simulation: the time of a plan. nccl: what NCCL would run,
and how long. table_fit: a topology's rates from tables of nccl-tests.
"""
