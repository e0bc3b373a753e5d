"""What every engine shares, whether it runs plans in processes, in a communicator or on devices.

types.py, arguments.py   element types; a call's arrays and what follows from them
program.py               a plan as the compiled engine loads it
outcomes.py              what engines report, and the errors that it amounts to
limits.py, memory.py     which settings make sense; allocation and R507
check.py                 test data, and what a collective makes of it
measure.py               timing and checking over sizes, on whatever engine
native.py                the compiled engine (`native/`)
"""

from sley.engine.limits import SLOT_BYTES, TIMEOUT_S
from sley.engine.types import DATA_TYPES

__all__ = ["DATA_TYPES", "SLOT_BYTES", "TIMEOUT_S"]
