"""Random programs: whatever the options, the plan means what the program meant."""

from hypothesis import given

import sley
from random_programs import RandomProgram, random_programs


@given(random_programs())
def test_every_valid_program_compiles_at_any_slots(random: RandomProgram) -> None:
    for slots in (1, 2, 8):
        for fusion in (True, False):
            plan = sley.compile(random.program, slots=slots, fusion=fusion, verify=False)
            sley.verify(plan, slots)
            sley.verify(plan, slots + 1)
