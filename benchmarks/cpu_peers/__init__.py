"""Compares sley on CPUs with gloo, Open MPI and MPICH: `python benchmarks/cpu_peers`
(command.py)."""
