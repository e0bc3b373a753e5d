"""sley on CPUs against gloo, Open MPI and MPICH: `python benchmarks/cpu_peers`, see command.py."""
