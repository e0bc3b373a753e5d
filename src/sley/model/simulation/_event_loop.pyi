"""The event loop of sley's simulator."""

from typing import Annotated

import numpy
from numpy.typing import NDArray

import sley.model.simulation.inputs


class Result:
    """The result of a run: times in us, data in bytes."""

    @property
    def bin_us(self) -> float:
        """The length of a bin of `load_bytes`."""

    @property
    def is_whole(self) -> bool:
        """Whether all blocks came to their ends."""

    @property
    def end_us(self) -> Annotated[NDArray[numpy.float64], dict(shape=(None,))]:
        """(blocks,), the end of each."""

    @property
    def moving_us(self) -> Annotated[NDArray[numpy.float64], dict(shape=(None,))]:
        """(blocks,), spent moving data."""

    @property
    def waiting_us(self) -> Annotated[NDArray[numpy.float64], dict(shape=(None,))]:
        """(blocks,), spent waiting for instructions of other blocks."""

    @property
    def message_us(self) -> Annotated[NDArray[numpy.float64], dict(shape=(None,))]:
        """(blocks,), spent waiting for messages."""

    @property
    def slot_us(self) -> Annotated[NDArray[numpy.float64], dict(shape=(None,))]:
        """(blocks,), spent waiting for free slots."""

    @property
    def overhead_us(self) -> Annotated[NDArray[numpy.float64], dict(shape=(None,))]:
        """(blocks,), spent on decoding, waits and fences themselves."""

    @property
    def execution_turn_us(self) -> Annotated[NDArray[numpy.float64], dict(shape=(None,))]:
        """(instructions x tiles,), when the block came to each execution."""

    @property
    def execution_start_us(self) -> Annotated[NDArray[numpy.float64], dict(shape=(None,))]:
        """
        (instructions x tiles,), when it began to move data; below 0 if it never did.
        """

    @property
    def execution_end_us(self) -> Annotated[NDArray[numpy.float64], dict(shape=(None,))]:
        """(instructions x tiles,), its end."""

    @property
    def execution_moving_us(self) -> Annotated[NDArray[numpy.float64], dict(shape=(None,))]:
        """(instructions x tiles,), how long it moved data."""

    @property
    def execution_cause(self) -> Annotated[NDArray[numpy.int8], dict(shape=(None,))]:
        """(instructions x tiles,), the reason of its last wait, as a `Cause`."""

    @property
    def execution_after(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]:
        """
        (instructions x tiles,), the execution that this wait was for; -1: none.
        """

    @property
    def execution_cause_us(self) -> Annotated[NDArray[numpy.float64], dict(shape=(None,))]:
        """(instructions x tiles,), the end of this wait."""

    @property
    def execution_first_cause(self) -> Annotated[NDArray[numpy.int8], dict(shape=(None,))]:
        """
        (instructions x tiles,), the reason of its last wait before it moved data.
        """

    @property
    def execution_first_after(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]:
        """
        (instructions x tiles,), the execution that that wait was for; -1: none.
        """

    @property
    def moved_bytes(self) -> Annotated[NDArray[numpy.float64], dict(shape=(None,))]:
        """(links,), the bytes that each has carried."""

    @property
    def load_bytes(self) -> Annotated[NDArray[numpy.float64], dict(shape=(None,))]:
        """(bins x links,), the bytes that each link carries in each bin of time."""

    @property
    def stuck(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]:
        """The instructions at which blocks are stuck; empty if all have ended."""

def simulate(inputs: sley.model.simulation.inputs.LoopInputs, cuts: list[sley.model.simulation.inputs.Tiling], slots: int, until_us: float = float('inf'), records: bool = True) -> Result:
    """
    Runs calls on a topology, each with its cut of chunks into tiles as they are on links. A run that takes longer than until_us ends as soon as that shows. records: whether the result has executions, and the bytes of links.
    """
