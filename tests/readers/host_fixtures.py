"""Outputs of host tools that the tests of their readers share; where each comes from: fixtures/formats.json."""

from __future__ import annotations

import importlib
from pathlib import Path

from busbw.readers.base import FileReader, LineReader

FIXTURES = Path(__file__).parent / "fixtures"

READERS: dict[str, tuple[str, ...]] = {
    "lspci": ("lspci/virtio_vv.txt", "lspci/virtio_tv.txt", "lspci/idle_gpu_vv.txt", "lspci/grammar_acs.txt", "lspci/switch_t.txt"),
    "nvidia_smi": (
        "nvidia_smi/table.txt", "nvidia_smi/table_535.txt", "nvidia_smi/query.txt", "nvidia_smi/query.csv", "nvidia_smi/nvlink_s.txt",
        "nvidia_smi/nvlink_e.txt",
    ),
    "topo_matrix": ("nvidia_smi/topo_p2p.txt", "nvidia_smi/topo_m_ansi.txt", "nvidia_smi/rocm_showtopo.txt"),
    "gpu_monitor": ("dmon/nvidia_smi.txt", "dmon/nvidia_smi_o_dt.txt", "dmon/dcgmi.txt"),
    "ucx_info": ("ucx/info_d_1.13.txt", "ucx/info_d_1.22.txt", "ucx/info_v_1.13.txt", "ucx/info_v_1.22.txt"),
    "ucx_log": ("ucx/log.txt", "ucx/ucc_log.txt", "ucx/proto_info.txt"),
    "ofi": ("ofi/fi_info_1.17.txt", "ofi/fi_info_v_1.17.txt", "ofi/fi_info_efa.txt", "ofi/fi_info_version.txt", "ofi/log.txt"),
    "sharp": ("sharp/log.txt",),
    "kernel_log": ("kernel/dmesg.txt", "kernel/times.txt"),
    "prometheus": ("prometheus/node_exporter.txt", "prometheus/infiniband.txt", "prometheus/dcgm.txt", "prometheus/openmetrics.txt"),
}  # fmt: skip
"""Module of a reader -> the outputs it reads."""


def text_of(name: str) -> str:
    """A fixture as text."""
    return (FIXTURES / name).read_text()


def readers_of(module: str) -> list[LineReader | FileReader]:
    """The readers of a module: of lines, of files, or both."""
    loaded = importlib.import_module(f"busbw.readers.{module}")
    return [getattr(loaded, name) for name in ("READER", "LINE_READER") if hasattr(loaded, name)]
