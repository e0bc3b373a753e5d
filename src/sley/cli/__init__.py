"""The command line: sley run, compile, verify, explain, list, completion."""

from sley.cli.main import main

__all__ = ["main"]
