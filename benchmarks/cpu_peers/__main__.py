"""Runs the comparison: `python benchmarks/cpu_peers`; command.py describes it."""

import sys
from importlib import import_module
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    sys.exit(import_module("cpu_peers.command").main())
