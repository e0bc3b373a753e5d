"""`python -m sley`: the command line."""

from sley.cli import main

main()
