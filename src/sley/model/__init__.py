"""Model: what a cluster can do with a plan.

bounds/         lower bounds of a collective on a topology
simulation/     the time of a plan
nccl/           NCCL's own choice for a call, the plans that it runs, and tables of nccl-tests
table_fit.py    a topology's rates from such tables
"""
