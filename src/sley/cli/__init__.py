"""The command line: a file for each command, and what they share.

Shared: options, measuring and simulating (options, and the values that commands get from them),
sources (programs and plans of WHAT), output (JSON, diagnostics, progress).
"""

from sley.cli.main import main

__all__ = ["main"]
