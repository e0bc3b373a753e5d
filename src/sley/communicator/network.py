"""The network of a communicator: what carries messages to ranks of other hosts."""

from __future__ import annotations

from typing import Any

from sley.communicator.bootstrap import Rendezvous
from sley.communicator.settings import Settings
from sley.errors import Place
from sley.errors.calls import N628
from sley.runtime.native import native


def connect(fabric: Any, rendezvous: Rendezvous, settings: Settings) -> Any | None:
    """Connects a fabric with the ranks of other hosts; its transport
    (`native.NetworkTransport`), or None where there are none. Errors: N628, N601."""
    if rendezvous.hosts.count == 1:
        return None
    transport = _listening(fabric, rendezvous, settings)
    addresses = rendezvous.exchange(transport.address)
    try:
        transport.connect(addresses, rendezvous.secret, settings.timeout_s)
    except OSError as error:
        raise N628.error(
            at=Place(detail=f"{rendezvous.name}, rank {rendezvous.rank}"),
            expected=f"the ranks of other hosts within reach of {rendezvous.nic.name}",
            found=str(error),
        ) from error
    return transport


def _listening(fabric: Any, rendezvous: Rendezvous, settings: Settings) -> Any:
    description = rendezvous.descriptions[rendezvous.rank]
    local = rendezvous.hosts.local[rendezvous.rank]
    nics = description.nics
    try:
        return native().tcp_transport(
            fabric, [nic.addresses[0] for nic in nics], local % len(nics), settings.timeout_s
        )
    except OSError as error:
        problem = N628.error(
            at=Place(detail=f"{rendezvous.name}, rank {rendezvous.rank}"),
            expected=f"to listen on {', '.join(nic.name for nic in nics)}",
            found=str(error),
        )
        rendezvous.refuse(problem)
        raise problem from error
