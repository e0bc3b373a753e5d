"""The steps of the first minutes on a GPU, each a process of its own; on_gpu.py runs them in order.

lines.py       the results: a line of JSON for each measurement, on the disk before the next begins
deadlines.py   processes that end in time, with all their children
device.py      whether the device answers
facts.py       the machine, the driver, and what the device can do
copies.py      one rank: memory, a copy, a division
smoke.py       two ranks of one block: each protocol with each engine; a hang on purpose
sanitizer.py   the small calls under compute-sanitizer
sizes.py       an AllReduce of eight ranks over sizes, types and protocols
outcomes.py    a plugin of pytest: a line for each test
"""
