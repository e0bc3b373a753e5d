"""Library: the machines that sley includes, read from the TOML files in machines/."""

from __future__ import annotations

from functools import cache

from sley.ir.topology import Topology
from sley.topologies.machine import machine_from, machine_tables, unknown_machine
from sley.topologies.node import Machine


def find_machine(name: str) -> Machine:
    """The machine with this name. Errors: T604, which suggests similar names."""
    if not isinstance(name, str) or name not in machine_tables():
        raise unknown_machine(name)
    return _machine(name)


@cache
def _machine(name: str) -> Machine:
    return machine_from(f"{name}.toml", machine_tables()[name])


def machine(name: str, nodes: int = 1) -> Topology:
    """A cluster of `nodes` nodes of the machine with this name. Errors: C308, T604."""
    return find_machine(name).topology(nodes)


def dgx1(nodes: int = 1) -> Topology:
    """DGX-1: 8 V100 in NVLink's hybrid cube mesh with its double links; 4 cards of 100 Gb/s."""
    return machine("dgx1", nodes)


def dgx2(nodes: int = 1) -> Topology:
    """DGX-2: 16 V100 on two boards of NVSwitches, 8 cards of 200 Gb/s."""
    return machine("dgx2", nodes)


def dgx_a100(nodes: int = 1) -> Topology:
    """DGX A100: 8 A100 around NVSwitches, 8 cards of 200 Gb/s."""
    return machine("dgx-a100", nodes)


def dgx_b200(nodes: int = 1) -> Topology:
    """DGX B200: 8 B200 around NVSwitches, 8 cards of 400 Gb/s."""
    return machine("dgx-b200", nodes)


def dgx_h100(nodes: int = 1) -> Topology:
    """DGX H100: 8 H100 around NVSwitches, 8 cards of 400 Gb/s."""
    return machine("dgx-h100", nodes)


def dgx_h100_nvls(nodes: int = 1) -> Topology:
    """DGX H100 whose NVSwitches reduce and multicast (NVLink SHARP)."""
    return machine("dgx-h100-nvls", nodes)


def mi250x(nodes: int = 1) -> Topology:
    """8 MI250X, which are 16 dies, joined by xGMI; 8 cards of 200 Gb/s."""
    return machine("mi250x", nodes)


def mi300x(nodes: int = 1) -> Topology:
    """8 MI300X, each linked to every other by xGMI; 8 cards of 400 Gb/s."""
    return machine("mi300x", nodes)


def ndv2(nodes: int = 1) -> Topology:
    """Azure NDv2: 8 V100 in a hybrid cube mesh, one card of 100 Gb/s."""
    return machine("ndv2", nodes)


def ndv4(nodes: int = 1) -> Topology:
    """Azure ND A100 v4: 8 A100 around NVSwitches, 8 cards of 200 Gb/s."""
    return machine("ndv4", nodes)


def ndv5(nodes: int = 1) -> Topology:
    """Azure ND H100 v5: 8 H100 around NVSwitches, 8 cards of 400 Gb/s."""
    return machine("ndv5", nodes)


def ndv5_nvls(nodes: int = 1) -> Topology:
    """Azure ND H100 v5 whose NVSwitches reduce and multicast (NVLink SHARP)."""
    return machine("ndv5-nvls", nodes)


def p5(nodes: int = 1) -> Topology:
    """AWS p5: 8 H100 around NVSwitches, four EFA cards of 100 Gb/s for each GPU."""
    return machine("p5", nodes)


def pcie_8(nodes: int = 1) -> Topology:
    """8 GPUs without NVLink: two processors with four GPUs each, behind PCIe 4.0 switches."""
    return machine("pcie-8", nodes)


def resccl(nodes: int = 1) -> Topology:
    """ResCCL's testbed: 8 A100, 4 cards of 200 Gb/s, racks of two nodes."""
    return machine("resccl", nodes)


def resccl_4gpu(nodes: int = 1) -> Topology:
    """ResCCL's testbed with 4 of the 8 GPUs of each node."""
    return machine("resccl-4gpu", nodes)
