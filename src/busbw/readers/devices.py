"""What small system tools say of devices: lspci links and ACS, nvidia-smi nvlink, ifconfig.

Lines only; a tool's whole report has, or will have, a reader of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from busbw.readers.base import Lines, Template

__all__ = ["READER", "DeviceReader"]

TEMPLATES: tuple[Template, ...] = (
    Template("pci.acs", "ACSCtl: {flags:s}", "lspci -vv", "info"),
    *(
        Template("pci.device", f"^{{bus_id:w}} {kind}: {{name:s}}", "lspci", "info")
        for kind in (
            "3D controller",
            "VGA compatible controller",
            "Display controller",
            "Processing accelerators",
            "Infiniband controller",
            "Ethernet controller",
            "PCI bridge",
            "USB controller",
            "Non-Volatile memory controller",
            "SATA controller",
            "Audio device",
            "System peripheral",
            "Bridge",
            "Serial controller",
            "Co-processor",
            "Encryption controller",
            "RAID bus controller",
        )
    ),
    Template("pci.link_capability", "LnkCap: {port:s}Speed {speed:f}GT/s, Width x{width:d}", "lspci -vv", "info"),
    Template("pci.link_capability", "LnkCap: {port:s}Speed {speed:f} GT/s, Width x{width:d}", "lspci -vv", "info"),
    Template("pci.link_status", "LnkSta: Speed {speed:f}GT/s{speed_note:s}, Width x{width:d}", "lspci -vv", "info"),
    Template("pci.link_status", "LnkSta: Speed {speed:f} GT/s{speed_note:s}, Width x{width:d}", "lspci -vv", "info"),
    Template("nvlink.link_down", "^ Link {link:d}: <inactive>", "nvidia-smi nvlink -s", "warning"),
    Template("nvlink.link_down", "^ Link {link:d}: inactive", "nvidia-smi nvlink -s", "warning"),
    Template("nvlink.link_up", "^ Link {link:d}: {rate:f} GB/s", "nvidia-smi nvlink -s", "info"),
    Template("nvlink.gpu", "^GPU {gpu:d}: {name:s} (UUID: {uuid:w}", "nvidia-smi nvlink -s", "info"),
    Template("net.interface", "^{interface:w} Link encap:{kind:w}", "ifconfig", "info"),
    Template("net.address", "inet addr:{address:w}", "ifconfig", "info"),
    Template("net.interface", "^{interface:w}: flags={flags:s} mtu {mtu:d}", "ifconfig", "info"),
)


class DeviceReader(Lines):
    """Lines of system tools."""

    name = "devices"
    templates: Sequence[Template] = TEMPLATES


READER = DeviceReader()
