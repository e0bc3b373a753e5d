"""Engines: what runs plans, on processors and on devices.

kernels/                 the kernels of a plan, as text
devices/                 plans as kernels on GPUs, and on threads of this machine

types.py, arguments.py   element types; a call's arrays, validated, with their type and count
varying.py               the counts of a call in which they vary
program.py               a plan as the compiled engine loads it
outcomes.py              the engines' reports, and the errors made of them
limits.py, memory.py     defaults and ranges of settings; allocation and R507
check.py                 test data, and the expected result of a collective
measure.py               timing and checking over sizes, for every engine
native.py                the compiled engine for processors (`native/`)
"""

from sley.engine.limits import SLOT_BYTES, TIMEOUT_S
from sley.engine.types import DATA_TYPES

__all__ = ["DATA_TYPES", "SLOT_BYTES", "TIMEOUT_S"]
