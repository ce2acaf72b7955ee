"""What `ifconfig` says of network interfaces, in both of its layouts."""

from __future__ import annotations

from collections.abc import Sequence

from busbw.readers.base import Lines, Template

__all__ = ["READER", "IfconfigReader"]

TEMPLATES: tuple[Template, ...] = (
    Template("net.interface", "^{interface:w} Link encap:{kind:w}", "ifconfig, net-tools 1.60", "info"),
    Template("net.address", "inet addr:{address:w}", "ifconfig, net-tools 1.60", "info"),
    Template("net.interface", "^{interface:w}: flags={flags:s} mtu {mtu:d}", "ifconfig, net-tools 2", "info"),
)


class IfconfigReader(Lines):
    """Lines of ifconfig."""

    name = "ifconfig"
    templates: Sequence[Template] = TEMPLATES


READER = IfconfigReader()
