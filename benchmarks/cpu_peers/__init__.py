"""Compares sley on CPUs with its peers: `python benchmarks/cpu_peers` (command.py)."""
