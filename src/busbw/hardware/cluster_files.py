"""A cluster by name or file: blueprints, users' own in YAML, and the files that tools write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from busbw.errors import InputError, Loss
from busbw.hardware.blueprints import find_node, load_nodes
from busbw.hardware.cluster import Cluster
from busbw.hardware.formats.machine import file_bytes, read_node
from busbw.hardware.what_if import nearest, set_figures

__all__ = ["find_cluster", "read_cluster_file"]


def find_cluster(
    name_or_file: str, nodes: int | None = None, settings: Mapping[str, str] | None = None
) -> tuple[Cluster, list[Loss]]:
    """The cluster of a node blueprint's name or of a file, and what was lost reading it.

    Files: ours in YAML; NCCL topology XML, hwloc XML and `nvidia-smi topo -m` give the node. nodes: 1 by default, or
    what the file says. settings: as `set_figures`. Raises InputError for an unknown name, with the nearest.
    """
    node = find_node(name_or_file)
    losses: list[Loss] = []
    path = Path(name_or_file)
    if node is not None:
        cluster = Cluster(node.name, node, nodes or 1)
    elif path.suffix.lower() in {".yaml", ".yml"} and path.is_file():
        cluster, losses = read_cluster_file(path)
        cluster = replace(cluster, nodes=nodes, hosts=()) if nodes and nodes != cluster.nodes else cluster
    elif path.is_file():
        read, losses = read_node(file_bytes(path), str(path), path.stem)
        cluster = Cluster(read.name, read, nodes or 1)
    else:
        hint = nearest(name_or_file, load_nodes())
        raise InputError(
            f"{name_or_file}: no cluster of this name and no file. {hint}`busbw hardware` lists the names."
        )
    return set_figures(cluster, settings or {}), losses


def read_cluster_file(path: Path) -> tuple[Cluster, list[Loss]]:
    """The cluster a YAML file describes, and what was lost in files it names.

    Raises InputError with file, line and remedy.
    """
    from busbw.hardware.cluster_yaml import read_cluster_yaml  # noqa: PLC0415 - loads pydantic

    return read_cluster_yaml(path)
