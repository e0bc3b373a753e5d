"""python -m sley, and the program sley: the command line."""

from __future__ import annotations

import sys


def run() -> None:
    """Runs the command line. Ctrl-C while it is imported, and a full disk, leave no traceback."""
    try:
        from sley.cli import main

        main(prog_name="sley")
    except KeyboardInterrupt:
        sys.exit(130)  # `sley.cli.output.INTERRUPTED`, whose module may be missing now
    except OSError as error:  # of click's own texts
        sys.exit(f"error: {error.strerror}")


if __name__ == "__main__":
    run()
