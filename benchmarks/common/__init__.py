"""Parts that several benchmarks share.

machine.py: the facts about the machine in every result. processes.py: measurements in separate
processes. results.py: results as JSON files. sizes.py: sizes on the command line. tables.py: tables
in Markdown, and the texts of times and ratios.
"""
