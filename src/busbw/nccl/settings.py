"""The environment variables that change what NCCL chooses, read from text; mistakes come back as one clear error.

Grammar and meaning after NVIDIA/nccl 2.30.7: src/misc/param.cc, src/graph/paths.cc, search.cc, tuning.cc, src/init.cc.
Where NCCL would silently go on with something else, the settings follow it and say so in `notes`; where it would
ignore a name it does not know, that is an error here, because nobody means that.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from busbw.errors import InputError
from busbw.nccl.topology import PathType
from busbw.nccl.variables import load_variables
from busbw.nccl.words import Algorithm, Function, Protocol

__all__ = ["Settings", "read_settings"]

Allowed = tuple[tuple[Function, frozenset[int]], ...]
"""For each function that a list speaks of the numbers of its algorithms or protocols."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the variables say. The defaults are NCCL's own; None leaves a matter to NCCL."""

    algorithms: Allowed = ()
    """NCCL_ALGO: what stays allowed."""
    protocols: Allowed = ()
    """NCCL_PROTO: what stays allowed. For functions it speaks of LL128 is not held back any more."""
    least_channels: int = 0
    most_channels: int = 64
    least_ctas: int = 1
    most_ctas: int = 64
    threads: int | None = None
    ll128_threads: int | None = None
    thread_thresholds: tuple[int, ...] = ()
    """NCCL_THREAD_THRESHOLDS: Tree LL, LL128, Simple, then Ring; bytes a thread."""
    p2p_level: PathType | None = None
    gdr_level: PathType | None = None
    gdr_read: int = -2
    gdr_c2c: bool = True
    pxn_disable: bool = False
    pxn_c2c: bool = True
    nvb_disable: bool = False
    cross_nic: int = 2
    nets_per_gpu: int | None = None
    """NCCL_NETDEVS_POLICY: None AUTO, 0 ALL, n MAX:n."""
    scatter_nets: bool = True
    mnnvl: bool = True
    """NCCL_MNNVL_ENABLE: whether hosts that NVLink joins count as one node."""
    nvls: int = 2
    """NCCL_NVLS_ENABLE: 0 off, 1 on, 2 where the hardware offers it."""
    nvls_channels: int | None = None
    pat: int = 2
    ll128_c2c: bool = True
    net_overhead_us: float | None = None
    given: tuple[tuple[str, str], ...] = ()
    """The variables as written."""
    notes: tuple[str, ...] = ()
    """What the user should know: values that NCCL replaces, variables that change nothing here."""

    def allowed_algorithms(self, function: Function) -> frozenset[int] | None:
        """What NCCL_ALGO leaves of a function; None where it says nothing of it."""
        return dict(self.algorithms).get(function)

    def allowed_protocols(self, function: Function) -> frozenset[int] | None:
        """What NCCL_PROTO leaves of a function; None where it says nothing of it."""
        return dict(self.protocols).get(function)

    def text_of(self, name: str) -> str:
        """A variable as written; empty where it is not given."""
        return dict(self.given).get(name, "")


def read_settings(variables: Mapping[str, str]) -> Settings:
    """The settings that environment variables make.

    Raises InputError for a name that NCCL does not read, with the nearest it does, and for a value it cannot use.

    >>> read_settings({"NCCL_MIN_NCHANNELS": "4"}).least_channels
    4
    """
    fields: dict[str, object] = {}
    notes: list[str] = []
    for name in variables:
        if name not in _READERS:
            notes.append(_without_effect(name))
    for name, reader in _READERS.items():
        if text := variables.get(name, "").strip():
            fields.update(reader(name, text, notes))
    if "NCCL_P2P_LEVEL" in variables and fields.pop("p2p_disabled", None):
        fields["p2p_level"] = PathType.LOC
        notes.append("NCCL_P2P_DISABLE=1 takes precedence of NCCL_P2P_LEVEL.")
    elif fields.pop("p2p_disabled", None):
        fields["p2p_level"] = PathType.LOC
    settings = Settings(**fields, given=tuple(variables.items()), notes=tuple(notes))  # type: ignore[arg-type]
    _refuse_contradictions(settings)
    return settings


def _refuse_contradictions(settings: Settings) -> None:
    if settings.least_ctas > settings.most_ctas:
        raise InputError(
            f"NCCL_MIN_CTAS={settings.least_ctas} is above NCCL_MAX_CTAS={settings.most_ctas}. "
            "Lower the first or raise the second."
        )
    wanted = settings.allowed_algorithms(Function.AllReduce)
    if wanted and settings.nvls == 0 and wanted <= {Algorithm.NVLS, Algorithm.NVLSTree}:
        raise InputError("NCCL_ALGO asks for NVLS alone and NCCL_NVLS_ENABLE=0 switches it off. Unset one of the two.")


def _without_effect(name: str) -> str:
    variable = load_variables().get(name)
    if variable is None:
        names = [*load_variables(), *_READERS]
        nearest = difflib.get_close_matches(name.upper(), names, 1, 0.6)
        hint = f" Did you mean {nearest[0]}?" if nearest else " `--env` takes variables such as NCCL_ALGO=Ring."
        raise InputError(f"{name}: no variable of NCCL that this model or its table knows.{hint}")
    if not variable.effective:
        return f"{name} has no effect any more: NCCL does not read it."
    return _ELSEWHERE.get(name, f"{name} does not change algorithm, protocol or channels; it was not used.")


_ELSEWHERE = {
    "NCCL_BUFFSIZE": "NCCL_BUFFSIZE changes chunk sizes and memory, not the choice; it was not used.",
    "NCCL_COLLNET_ENABLE": "NCCL_COLLNET_ENABLE: CollNet is not modelled yet; its cells stay off.",
    "NCCL_SHM_DISABLE": "NCCL_SHM_DISABLE: GPUs without peer access would talk through the network, which is not modelled.",
    "NCCL_GRAPH_FILE": "NCCL_GRAPH_FILE: graphs from a file are not modelled; the search was made instead.",
    "NCCL_TOPO_FILE": "NCCL_TOPO_FILE: name the file with --cluster instead; it was not used.",
}

Read = dict[str, object]
Reader = Callable[[str, str, list[str]], Read]


def _number(name: str, text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise InputError(
            f"{name}={text}: not a whole number. NCCL would ignore it; write one, such as {name}=4."
        ) from None


def _integer(key: str) -> Reader:
    return lambda name, text, _: {key: _number(name, text)}


def _one_of(key: str, values: tuple[int, ...], negated: bool = False, flag: bool = False) -> Reader:
    def read(name: str, text: str, _: list[str]) -> Read:
        value = _number(name, text)
        if value not in values:
            nearest = min(values, key=lambda known: abs(known - value))
            raise InputError(f"{name}={text}: takes {', '.join(map(str, values))}; nearest: {nearest}.")
        return {key: (value == 0 if negated else value != 0) if flag else value}

    return read


def _flag(key: str) -> Reader:
    return _one_of(key, (0, 1), flag=True)


def _channels(key: str, least: int, most: int = 64) -> Reader:
    def read(name: str, text: str, notes: list[str]) -> Read:
        value = _number(name, text)
        taken = min(max(value, least), most)
        if taken != value:
            notes.append(f"{name}={text} is outside {least} to {most}; NCCL takes {taken}.")
        return {key: taken}

    return read


def _nvls_channels(name: str, text: str, notes: list[str]) -> Read:
    value = _number(name, text)
    if value <= 0:
        notes.append(f"{name}={text} is below 1; NCCL takes its own number.")
        return {}
    return {"nvls_channels": value}


def _threads(key: str, least: int, most: int) -> Reader:
    def read(name: str, text: str, notes: list[str]) -> Read:
        value = _number(name, text)
        if value <= 0:
            return {}
        taken = most if value % 32 else min(max(value, least), most)
        if taken != value:
            notes.append(f"{name}={text} must be a multiple of 32 from {least} to {most}; NCCL takes {taken}.")
        return {key: taken}

    return read


_OLD_LEVELS = (PathType.LOC, PathType.PIX, PathType.PXB, PathType.PHB, PathType.SYS, PathType.SYS)
"""What the numbers mean that levels had before they had names. Source: NVIDIA/nccl 2.30.7, src/graph/paths.cc."""


def _level(key: str) -> Reader:
    def read(name: str, text: str, notes: list[str]) -> Read:
        if text[0].isdigit():
            level = _OLD_LEVELS[min(_number(name, text), len(_OLD_LEVELS) - 1)]
            notes.append(f"{name}={text}: numbers are the old spelling; it means {level.name}.")
            return {key: level}
        names = [level.name for level in PathType if level <= PathType.SYS]
        if text not in names:
            nearest = difflib.get_close_matches(text.upper(), names, 1, 0.0)[0]
            raise InputError(f"{name}={text}: no such distance. It takes {', '.join(names)}; nearest: {nearest}.")
        return {key: PathType[text]}

    return read


def _nets_policy(name: str, text: str, _: list[str]) -> Read:
    word = text.upper()
    if word in ("AUTO", "ALL"):
        return {"nets_per_gpu": None if word == "AUTO" else 0}
    found = re.fullmatch(r"MAX:(\d{1,6})", word)
    if not found or int(found[1]) < 1:
        raise InputError(f"{name}={text}: takes AUTO, ALL or MAX:n with n from 1.")
    return {"nets_per_gpu": int(found[1])}


def _net_overhead(name: str, text: str, _: list[str]) -> Read:
    value = _number(name, text)
    return {} if value == -2 else {"net_overhead_us": value * 0.001}


def _thresholds(name: str, text: str, _: list[str]) -> Read:
    words = text.split()
    if len(words) > 6:
        raise InputError(f"{name}={text}: takes up to 6 numbers: Tree LL, LL128, Simple, Ring LL, LL128, Simple.")
    return {"thread_thresholds": tuple(_number(name, word) for word in words)}


def _allowed(key: str, kind: type[Algorithm] | type[Protocol]) -> Reader:
    return lambda name, text, _: {key: _read_list(name, text, list(kind))}


def _read_list(name: str, text: str, elements: Sequence[IntEnum]) -> Allowed:
    """What `[function:]a,b;function:^c` allows: a caret takes away, and only the first entry may stand for all functions."""
    every = {int(element) for element in elements}
    allowed: dict[Function, frozenset[int]] = {}
    for place, entry in enumerate(part for part in text.split(";") if part):
        head, _, tail = entry.rpartition(":")
        if not head and place > 0:
            raise InputError(
                f"{name}={text}: entry {entry!r} needs a function before it, such as allreduce:{entry}. "
                "Only the first entry may stand for all functions."
            )
        functions = [_element(name, text, head, list(Function))] if head else list(Function)
        negated = tail.startswith("^")
        words = [word for word in tail.removeprefix("^").split(",") if word]
        named = {_element(name, text, word, elements) for word in words}
        for function in functions:
            allowed[Function(function)] = frozenset(every - named if negated else named)
    return tuple(sorted(allowed.items()))


def _element(name: str, text: str, word: str, known: Sequence[IntEnum]) -> int:
    names = {element.name.lower(): int(element) for element in known}
    if word.lower() in names:
        return names[word.lower()]
    nearest = difflib.get_close_matches(word.lower().strip().replace("_", ""), names, 1, 0.0)[0]
    shown = [element.name for element in known]
    right = next(element for element in shown if element.lower() == nearest)
    raise InputError(f"{name}={text}: {word!r} is none of {', '.join(shown)}; nearest: {right}. NCCL refuses it too.")


_READERS: dict[str, Reader] = {
    "NCCL_ALGO": _allowed("algorithms", Algorithm),
    "NCCL_PROTO": _allowed("protocols", Protocol),
    "NCCL_MIN_NRINGS": _channels("least_channels", 0),
    "NCCL_MIN_NCHANNELS": _channels("least_channels", 0),
    "NCCL_MAX_NRINGS": _channels("most_channels", 1),
    "NCCL_MAX_NCHANNELS": _channels("most_channels", 1),
    "NCCL_MIN_CTAS": _channels("least_ctas", 1),
    "NCCL_MAX_CTAS": _channels("most_ctas", 1),
    "NCCL_NTHREADS": _threads("threads", 64, 512),
    "NCCL_LL128_NTHREADS": _threads("ll128_threads", 160, 640),
    "NCCL_THREAD_THRESHOLDS": _thresholds,
    "NCCL_P2P_DISABLE": _flag("p2p_disabled"),
    "NCCL_P2P_LEVEL": _level("p2p_level"),
    "NCCL_NET_GDR_LEVEL": _level("gdr_level"),
    "NCCL_NET_GDR_READ": _integer("gdr_read"),
    "NCCL_NET_GDR_C2C": _flag("gdr_c2c"),
    "NCCL_PXN_DISABLE": _flag("pxn_disable"),
    "NCCL_PXN_C2C": _flag("pxn_c2c"),
    "NCCL_NVB_DISABLE": _flag("nvb_disable"),
    "NCCL_CROSS_NIC": _one_of("cross_nic", (0, 1, 2)),
    "NCCL_NETDEVS_POLICY": _nets_policy,
    "NCCL_MNNVL_SCATTER_NETS_ENABLE": _flag("scatter_nets"),
    "NCCL_MNNVL_ENABLE": _one_of("mnnvl", (0, 1, 2), flag=True),
    "NCCL_NVLS_ENABLE": _one_of("nvls", (0, 1, 2)),
    "NCCL_NVLS_NCHANNELS": _nvls_channels,
    "NCCL_PAT_ENABLE": _one_of("pat", (0, 1, 2)),
    "NCCL_LL128_C2C": _flag("ll128_c2c"),
    "NCCL_NET_OVERHEAD": _net_overhead,
}
"""The variables this model reads. Where two spellings are given the new one counts, because it stands later here."""
