"""The network of a communicator: what carries messages to ranks of other hosts."""

from __future__ import annotations

import importlib.util
import logging
import os
from pathlib import Path
from typing import Any

from sley.communicator.settings import Network, Settings
from sley.communicator.stats import logger
from sley.engine.native import native
from sley.errors import Place
from sley.errors.calls import N628, N629
from sley.rendezvous.bootstrap import Rendezvous

_UCP = "libucp.so.0"
_PACKAGES = ("libucx",)
"""Packages of Python that bring UCX along; else it is the system's."""


def connect(fabric: Any, rendezvous: Rendezvous, settings: Settings) -> Any | None:
    """Connects a fabric with the ranks of other hosts; its transport
    (`native.NetworkTransport`), or None where there are none. Errors: N628, N629, N601."""
    if rendezvous.hosts.count == 1:
        return None
    library = _agreed(rendezvous, settings)
    nics = rendezvous.descriptions[rendezvous.rank].nics
    own = rendezvous.hosts.local[rendezvous.rank] % len(nics)
    place = Place(detail=f"{rendezvous.name}, rank {rendezvous.rank}")
    try:
        if library:
            names = [nic.name for nic in nics]
            transport = native().ucx_transport(fabric, names, own, settings.timeout_s, library)
        else:
            addresses = [nic.addresses[0] for nic in nics]
            transport = native().tcp_transport(fabric, addresses, own, settings.timeout_s)
    except OSError as error:
        problem = N628.error(
            at=place,
            expected=f"to be reached over {', '.join(nic.name for nic in nics)}",
            found=str(error),
        )
        rendezvous.refuse(problem)
        raise problem from error
    addresses_of_all = rendezvous.exchange(transport.address)
    try:
        transport.connect(addresses_of_all, rendezvous.secret, settings.timeout_s)
    except OSError as error:
        raise N628.error(
            at=place,
            expected=f"the ranks of other hosts within reach of {rendezvous.nic.name}",
            found=str(error),
        ) from error
    return transport


def _agreed(rendezvous: Rendezvous, settings: Settings) -> str:
    """The path of UCX's library if all ranks use it; "" for TCP. Says which, and why."""
    library, version, why = _ucx(settings)
    said = [value.decode() for value in rendezvous.exchange(version.encode())]
    missing = [rank for rank, other in enumerate(said) if not other]
    if not missing:
        logger.info("%s: UCX %s between hosts", rendezvous.name, version)
        return library
    if settings.network is Network.UCX:
        found = why or f"rank {missing[0]} has none"
        raise N629.error(
            at=Place(detail=f"{rendezvous.name}, rank {rendezvous.rank}"),
            expected=f"UCX's library, {_UCP}, on every rank",
            found=found,
        )
    reason = why or f"rank {missing[0]} has no UCX"
    logger.log(
        logging.INFO if settings.network is Network.TCP else logging.WARNING,
        "%s: TCP between hosts: %s (SLEY_NETWORK=tcp asks for it)",
        rendezvous.name,
        reason,
    )
    return ""


def _ucx(settings: Settings) -> tuple[str, str, str]:
    """UCX's library and its version, or why it isn't used."""
    if settings.network is Network.TCP:
        return "", "", "it was asked for"
    tried = []
    for library in _libraries():
        try:
            return library, native().ucx_version(library), ""
        except OSError as error:
            said = error.strerror or str(error)
            tried.append(said.removesuffix(f": {os.strerror(error.errno or 0)}"))
    return "", "", "; ".join(tried)


def _libraries() -> list[str]:
    paths = []
    for package in _PACKAGES:
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations if spec else None) or ():
            path = Path(folder) / "lib" / _UCP
            if path.exists():
                paths.append(str(path))
    return [*paths, _UCP]
