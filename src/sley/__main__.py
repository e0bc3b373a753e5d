"""python -m sley: the command line."""

from sley.cli import main

if __name__ == "__main__":
    main(prog_name="sley")
