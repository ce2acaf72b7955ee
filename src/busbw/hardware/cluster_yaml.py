"""Users' own clusters in YAML, read with line numbers, so that an error names the line.

Aliases, anchors, tags and duplicate keys are refused. Imported when a file is read: pydantic takes its time.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from busbw.errors import InputError, Loss
from busbw.hardware.blueprints import CpuId, Node, PcieRoot, cpu_link, find_node, load_nodes
from busbw.hardware.catalogue import find_accelerator, load_catalogue
from busbw.hardware.cluster import Cluster, FabricPlan
from busbw.hardware.formats.hostlist import expand_hostlist
from busbw.hardware.formats.machine import file_bytes, read_fabric, read_node
from busbw.hardware.what_if import nearest, parse_quantity, set_figures

__all__ = ["read_cluster_yaml"]

MAX_BYTES = 1024 * 1024
"""Largest YAML read; a cluster takes some 100 lines."""
_MEGA = 1e6


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _NicFile(_Strict):
    name: str
    rate: str | None = None


class _PcieFile(_Strict):
    numa: int = 0
    gpus: list[int] = Field(default_factory=list)
    nics: list[int] = Field(default_factory=list)
    generation: Annotated[int, Field(ge=1, le=6)]
    width: Annotated[int, Field(ge=1, le=32)] = 16
    switch: bool = True


class _NvswitchFile(_Strict):
    name: str
    count: Annotated[int, Field(ge=1)] = 1


class _NodeFile(_Strict):
    base: str | None = None
    file: str | None = None
    accelerator: str | None = None
    gpus: Annotated[int, Field(ge=1, le=1024)] | None = None
    nic: _NicFile | None = None
    pcie: list[_PcieFile] | None = None
    nvswitch: _NvswitchFile | None = None
    nvlink_domain_nodes: Annotated[int, Field(ge=1)] | None = None
    nvlink_mesh: list[Annotated[list[int], Field(min_length=3, max_length=3)]] | None = None
    cpu: str | None = None


class _FabricFile(_Strict):
    kind: Literal[
        "automatic", "single-switch", "fat-tree", "rail-optimised", "nvlink-domains", "dragonfly+", "torus", "graph"
    ] = "automatic"
    switch: str | None = None
    levels: Annotated[int, Field(ge=1, le=4)] | None = None
    oversubscription: Annotated[float, Field(gt=0, strict=False)] = 1.0
    groups: Annotated[int, Field(ge=0)] = 0
    shape: list[Annotated[int, Field(ge=2)]] = Field(default_factory=list)
    file: str | None = None


class _ClusterFile(_Strict):
    version: Literal[1] = Field(1, alias="schema")
    name: str | None = None
    nodes: Annotated[int, Field(ge=1)] | None = None
    node: str | _NodeFile
    fabric: _FabricFile = Field(default_factory=_FabricFile)
    routing: Literal["d-mod-k", "ecmp", "spray", "adaptive"] = "d-mod-k"
    hosts: str | None = None
    settings: dict[str, str | int | float] = Field(default_factory=dict, alias="set")


def read_cluster_yaml(path: Path) -> tuple[Cluster, list[Loss]]:
    """The cluster a YAML file describes, and what was lost in files it names.

    Raises InputError with file, line and remedy.
    """
    text = file_bytes(path).decode("utf-8", errors="replace")
    data, lines = _load(text, str(path))
    try:
        told = _ClusterFile.model_validate(data)
    except ValidationError as error:
        raise InputError("\n".join(_explained(error, data, lines, str(path)))) from error
    try:
        return _cluster(told, path, lines)
    except ValueError as error:
        raise InputError(f"{path}: {error}. Change the file.") from error


def _cluster(told: _ClusterFile, path: Path, lines: dict[tuple[Any, ...], int]) -> tuple[Cluster, list[Loss]]:
    node, losses = _node(told.node, path, lines)
    fabric = told.fabric
    plan = (
        FabricPlan(
            kind=fabric.kind,
            levels=fabric.levels,
            oversubscription=fabric.oversubscription,
            groups=fabric.groups,
            shape=tuple(fabric.shape),
        )
        if fabric.kind != "graph"
        else FabricPlan()
    )
    hosts: tuple[str, ...] = ()
    if fabric.file is not None:
        graph, names, more = read_fabric(_beside(path, fabric.file), node)
        losses += more
        plan, hosts = FabricPlan(kind="graph", graph=graph), names
    elif fabric.kind == "graph":
        raise InputError(
            f"{path}:{_line(lines, ('fabric', 'kind'))}: fabric.kind graph needs `file:`, the output of "
            "ibnetdiscover or a topology.conf of Slurm."
        )
    if told.hosts is not None:
        try:
            hosts = tuple(expand_hostlist(told.hosts))
        except ValueError as error:
            raise InputError(f"{path}:{_line(lines, ('hosts',))}: hosts: {error}") from error
    nodes = told.nodes or len(hosts) or 1
    cluster = Cluster(told.name or path.stem, node, nodes, plan, told.routing, hosts)
    settings = {"switch": fabric.switch} if fabric.switch else {}
    cluster = set_figures(cluster, settings, f"{path}:{_line(lines, ('fabric', 'switch'))}")
    for name, value in told.settings.items():
        cluster = set_figures(cluster, {name: str(value)}, f"{path}:{_line(lines, ('set', name))}")
    return cluster, losses


def _node(told: str | _NodeFile, path: Path, lines: dict[tuple[Any, ...], int]) -> tuple[Node, list[Loss]]:
    if isinstance(told, str):
        told = _NodeFile(base=told)
    losses: list[Loss] = []
    base: Node | None = None
    if told.base is not None:
        base = find_node(told.base)
        if base is None:
            line = _line(lines, ("node", "base"))
            raise InputError(
                f"{path}:{line}: node {told.base!r} is unknown. {nearest(told.base, load_nodes())}".rstrip()
            )
    elif told.file is not None:
        base, losses = read_node(file_bytes(_beside(path, told.file)), told.file, path.stem, told.accelerator)
    catalogue = load_catalogue()
    changes: dict[str, Any] = {}
    if told.accelerator is not None:
        changes["accelerator"] = find_accelerator(told.accelerator)
        if changes["accelerator"] is None:
            line = _line(lines, ("node", "accelerator"))
            hint = nearest(told.accelerator, catalogue.accelerators)
            raise InputError(
                f"{path}:{line}: accelerator {told.accelerator!r} is not in the catalogue. {hint}".rstrip()
            )
    if told.nic is not None:
        if told.nic.name not in catalogue.nics:
            line = _line(lines, ("node", "nic", "name"))
            raise InputError(
                f"{path}:{line}: NIC {told.nic.name!r} is not in the catalogue. {nearest(told.nic.name, catalogue.nics)}".rstrip()
            )
        changes["nic"] = catalogue.nics[told.nic.name]
        rate = changes["nic"].rate_bytes_per_s.value
        if told.nic.rate is not None:
            try:
                rate = parse_quantity(told.nic.rate, "rate")
            except ValueError as error:
                raise InputError(f"{path}:{_line(lines, ('node', 'nic', 'rate'))}: nic.rate: {error}") from error
        changes["nic_rate_bytes_per_s"] = rate
    if told.nvswitch is not None:
        if told.nvswitch.name not in catalogue.nvswitches:
            line = _line(lines, ("node", "nvswitch", "name"))
            hint = nearest(told.nvswitch.name, catalogue.nvswitches)
            raise InputError(f"{path}:{line}: NVSwitch {told.nvswitch.name!r} is not in the catalogue. {hint}".rstrip())
        changes |= {"nvswitch": catalogue.nvswitches[told.nvswitch.name], "nvswitches": told.nvswitch.count}
    if told.pcie is not None:
        changes["pcie"] = tuple(
            PcieRoot(r.numa, tuple(r.gpus), tuple(r.nics), r.generation, r.width, r.switch) for r in told.pcie
        )
        changes["gpus"] = told.gpus or sum(len(root.gpus) for root in told.pcie)
    if told.nvlink_domain_nodes is not None:
        changes["nvlink_domain_nodes"] = told.nvlink_domain_nodes
    if told.nvlink_mesh is not None:
        changes["nvlink_mesh"] = tuple((a, b, links) for a, b, links in told.nvlink_mesh)
    if told.cpu is not None and base is not None:
        changes["cpu"] = told.cpu
    if base is not None and told.gpus is not None and told.pcie is None:
        line = _line(lines, ("node", "gpus"))
        raise InputError(f"{path}:{line}: node.gpus without node.pcie leaves open where the GPUs hang. Give both.")
    if told.file is not None:
        for key in ("pcie", "nvswitch", "nvlink_mesh"):
            if getattr(told, key) is not None:
                line = _line(lines, ("node", key))
                raise InputError(f"{path}:{line}: node.{key} and node.file both give links. Keep one of them.")
    try:
        if base is not None:
            return replace(base, **changes), losses
        missing = [name for name in ("accelerator", "nic", "pcie") if name not in changes]
        if missing:
            line = _line(lines, ("node",))
            raise InputError(
                f"{path}:{line}: node lacks {', '.join(missing)}. Give them, or start from a known node with "
                "`base: dgx-h100` or from a topology file with `file:`."
            )
        defaults = {"nvswitch": None, "nvswitches": 0, "nvlink_domain_nodes": 1}
        identity = CpuId("x86_64", "GenuineIntel", 6, 143)
        return Node(
            name=path.stem,
            title=f"described in {path.name}",
            cpu=told.cpu or "not stated",
            sources={"all": f"described in {path.name}", "cpu_id": "Intel Sapphire Rapids: a guess"},
            cpu_id=identity,
            cpu_link=cpu_link(identity),
            **(defaults | changes),
        ), losses
    except ValueError as error:
        raise InputError(
            f"{path}:{_line(lines, ('node',))}: {error}. Number GPUs and NICs from 0, each once."
        ) from error


def _beside(path: Path, name: str) -> Path:
    found = path.parent / name
    if not found.is_file():
        raise InputError(
            f"{path}: it names {name}, which is not beside it. Give the path from the folder of {path.name}."
        )
    return found


def _load(text: str, path: str) -> tuple[Any, dict[tuple[Any, ...], int]]:
    """Data and the line of each key by its path. Aliases are refused: a few lines could grow without bound."""
    if len(text) > MAX_BYTES:
        raise InputError(f"{path}: larger than {MAX_BYTES} bytes. This is no cluster; pass the right file.")
    try:
        for token in yaml.scan(text, Loader=yaml.SafeLoader):
            if isinstance(token, (yaml.AliasToken, yaml.AnchorToken, yaml.TagToken)):
                raise InputError(
                    f"{path}:{token.start_mark.line + 1}: anchors, aliases and tags are not read. Write the value out."
                )
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else 1
        raise InputError(
            f"{path}:{line}: no YAML: {getattr(error, 'problem', error)}. Look at indentation and colons."
        ) from error
    except RecursionError as error:
        raise InputError(f"{path}: nested too deeply. This is no cluster; pass the right file.") from error
    if not isinstance(data, dict):
        raise InputError(f"{path}:1: no cluster: a file starts with keys such as `node: dgx-h100` and `nodes: 16`.")
    lines: dict[tuple[Any, ...], int] = {(): 1}
    _note_lines(root, (), lines, path)
    return data, lines


def _note_lines(node: Any, at: tuple[Any, ...], lines: dict[tuple[Any, ...], int], path: str) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            place = (*at, key.value)
            if place in lines:
                raise InputError(
                    f"{path}:{key.start_mark.line + 1}: {key.value} is given twice, first on line "
                    f"{lines[place]}. Remove one."
                )
            lines[place] = key.start_mark.line + 1
            _note_lines(value, place, lines, path)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            lines[*at, index] = value.start_mark.line + 1
            _note_lines(value, (*at, index), lines, path)


def _line(lines: dict[tuple[Any, ...], int], at: tuple[Any, ...]) -> int:
    """The line of a key, or of the nearest thing around it."""
    while at not in lines and at:
        at = at[:-1]
    return lines.get(at, 1)


def _explained(error: ValidationError, data: Any, lines: dict[tuple[Any, ...], int], path: str) -> list[str]:
    """One sentence a mistake: file, line, key, what is wrong, how to mend."""
    said = []
    union = isinstance(data, dict) and isinstance(data.get("node"), dict)
    for each in error.errors():
        at = tuple(part for part in each["loc"] if part not in ("_NodeFile", "str"))
        if union and each["loc"][-1] == "str":
            continue  # node may also be a name; here it is not
        if not union and "_NodeFile" in each["loc"]:
            continue
        key, where = ".".join(str(part) for part in at), f"{path}:{_line(lines, at)}"
        if each["type"] == "extra_forbidden":
            said.append(f"{where}: {key} is no key of a cluster file. {nearest(str(at[-1]), _keys(at[:-1]))}".rstrip())
        elif each["type"] == "missing":
            said.append(f"{where}: {key} is missing. Add it.")
        elif each["type"] == "literal_error":
            options = [part.strip("'") for part in str(each["ctx"]["expected"]).replace(" or ", ", ").split(", ")]
            said.append(
                f"{where}: {key}: {each['input']!r} is unknown. {nearest(str(each['input']), options)}".rstrip()
            )
        else:
            said.append(f"{where}: {key}: {each['msg']}; it says {each['input']!r}. Change the value.")
    return said


def _keys(at: tuple[Any, ...]) -> list[str]:
    models: dict[tuple[Any, ...], type[BaseModel]] = {
        (): _ClusterFile,
        ("node",): _NodeFile,
        ("node", "nic"): _NicFile,
        ("node", "nvswitch"): _NvswitchFile,
        ("node", "pcie"): _PcieFile,
        ("fabric",): _FabricFile,
    }
    model = models.get(tuple(part for part in at if isinstance(part, str)))
    return [field.alias or name for name, field in model.model_fields.items()] if model is not None else []
