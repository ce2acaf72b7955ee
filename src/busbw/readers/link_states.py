"""What RDMA tools print of the state of a link, in the words of `ports`."""

from __future__ import annotations

__all__ = ["physical_state", "port_state"]

_STATES = {
    "active": "active",
    "down": "down",
    "init": "init",
    "initialize": "init",
    "initializing": "init",
    "armed": "armed",
    "activedefer": "active_defer",
    "nop": "nop",
    "disable": "down",
    "polling": "down",
}
"""rdma-core ibstat.c (port_state_str), libibmad/dump.c, libibverbs (port_state_str), linux sysfs.c; the last two: mlxlink."""

_PHYSICAL_STATES = {
    "linkup": "link_up",
    "ethanfsmenable": "link_up",
    "polling": "polling",
    "disabled": "disabled",
    "disable": "disabled",
    "sleep": "sleep",
    "training": "training",
    "portconfigurationtraining": "training",
    "linkerrorrecovery": "link_error_recovery",
    "phytest": "phy_test",
}
"""The same sources. mlxlink calls an Ethernet link that is up by the state of its auto-negotiation machine, ETH_AN_FSM_ENABLE."""


def port_state(word: str) -> str | None:
    """The state of a port in our word: active, down, init, armed, active_defer, nop; None if no tool calls one so.

    >>> port_state("PORT_ACTIVE"), port_state("Initializing"), port_state("Up")
    ('active', 'init', None)
    """
    return _STATES.get(_plain(word).removeprefix("port"))


def physical_state(word: str) -> str | None:
    """The physical state in our word: link_up, polling, disabled, training, sleep, link_error_recovery, phy_test; None if no tool calls one so.

    >>> physical_state("LINK_UP"), physical_state("LinkUp"), physical_state("Phy Test")
    ('link_up', 'link_up', 'phy_test')
    """
    return _PHYSICAL_STATES.get(_plain(word))


def _plain(word: str) -> str:
    return word.strip().lower().replace("_", "").replace(" ", "")
