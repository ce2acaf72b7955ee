"""Predicted times of a collective on a cluster, with NCCL's own choice of algorithm where NCCL runs there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from busbw.collectives import bus_factor
from busbw.errors import InputError
from busbw.hardware import Cluster
from busbw.hardware.formats import node_to_nccl_topology
from busbw.nccl import (
    DEFAULT_VERSION,
    Algorithm,
    Communicator,
    Protocol,
    Settings,
    communicator,
    function_of,
    load_constants,
)
from busbw.prediction.calibration import Calibration, load_calibration
from busbw.prediction.choosing import FASTEST, chosen, cut_topology, is_tuned_by_plugin
from busbw.prediction.movement import Movement, movements
from busbw.prediction.situation import Situation, situation_of
from busbw.prediction.timing import Parts, moves_of, parts

__all__ = ["PREDICTED", "Predictions", "predict", "predict_in"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

PREDICTED = (
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "send_recv", "gather", "scatter",
)  # fmt: skip
"""The collectives that have a time model."""


@dataclass(frozen=True, slots=True)
class Predictions:
    """Times by size; S sizes. What each is made of stands in `parts`."""

    collective: str
    where: Situation
    size_bytes: IntArray  # (S,)
    time_s: FloatArray  # (S,)
    low_s: FloatArray  # (S,), 80 % of healthy measurements lie between low and high
    high_s: FloatArray  # (S,)
    algorithm: tuple[str, ...]
    protocol: tuple[str, ...]
    channels: tuple[int | None, ...]
    """None where the choice was not NCCL's."""
    parts: Parts
    notes: tuple[str, ...] = ()

    @property
    def algbw_bytes_per_s(self) -> FloatArray:
        """Size over time."""
        return self.size_bytes / self.time_s

    @property
    def busbw_bytes_per_s(self) -> FloatArray:
        """Algorithm bandwidth times the collective's factor, as nccl-tests prints it."""
        return self.algbw_bytes_per_s * bus_factor(self.collective, self.where.ranks)

    def limit(self, place: int) -> str:
        """What a size waits for longest: launch, latency, the links inside a node or domain, or its NICs."""
        found = self.parts
        wire = float(max(found.intra_s[place], found.inter_s[place]))
        waiting = {
            "launch": float(found.launch_s[place]),
            "latency": float(found.latency_s[place] + found.fill_s[place]),
            "NICs" if found.inter_s[place] > found.intra_s[place] else self._links(): wire,
        }
        return max(waiting, key=waiting.__getitem__)

    def _links(self) -> str:
        return {"switch": "NVLink", "mesh": "links between GPUs"}.get(self.where.shape, "PCIe")


def predict(
    cluster: Cluster,
    collective: str,
    sizes_bytes: Iterable[int],
    *,
    ranks: int | None = None,
    settings: Settings | None = None,
    version: str = DEFAULT_VERSION,
    calibration: Calibration | None = None,
) -> Predictions:
    """The predictions for a cluster, all GPUs or its first `ranks`.

    Raises InputError for what is not modelled, impossible counts, and settings that leave NCCL nothing to run.
    """
    settings = settings or Settings()
    sharp = settings.text_of("NCCL_COLLNET_ENABLE") not in ("", "0")
    where = situation_of(cluster, ranks, mnnvl=settings.mnnvl, sharp=sharp)
    notes: list[str] = []
    most = cluster.node.nvlink_domain_nodes
    if settings.mnnvl and where.domains > 1 and where.domain_ranks < most * cluster.node.gpus:
        notes.append(
            f"Nodes are taken as {where.domains} NVLink domains of {where.domain_ranks // cluster.node.gpus}, of {most} that fit."
        )
    model = None
    if where.library == "NCCL" and where.ranks > 1 and function_of(collective) is not None:
        model = _communicator(cluster, where, settings, version, notes)
    elif where.library == "RCCL":
        notes.append("RCCL's own choice is not modelled: the fastest algorithm was taken.")
    return predict_in(
        where, collective, sizes_bytes, model=model, settings=settings, calibration=calibration, notes=notes
    )


def predict_in(
    where: Situation,
    collective: str,
    sizes_bytes: Iterable[int],
    *,
    model: Communicator | None = None,
    settings: Settings | None = None,
    calibration: Calibration | None = None,
    notes: Sequence[str] = (),
) -> Predictions:
    """The predictions in a situation: what NCCL's `model` chooses, or the fastest movement that settings leave."""
    sizes = _sizes(sizes_bytes)
    calibration = calibration or load_calibration()
    found = movements(collective, where)
    if not found:
        raise InputError(f"{collective} has no time model. Predicted are {', '.join(PREDICTED)}.")
    if where.ranks == 1:
        found = [Movement("P2P", "Simple", 0.0, 0.0, 0.0, 0.0, "p2p")]
    channels: tuple[int | None, ...] = (None,) * len(sizes)
    said = list(notes)
    figures = calibration.figures(where.gpu, where.network)
    block = moves_of(found, where, sizes.astype(np.float64))
    pick = chosen(where, None, found, collective, sizes.tolist())
    if model is not None and is_tuned_by_plugin(where) and function_of(collective) is not None:
        said.append(
            "EFA's plugin tunes instead of NCCL, after its vendor's measurements: the fastest algorithm was taken."
        )
    elif model is not None and where.ranks > 1:
        pick, channels = _chosen(model, found, collective, sizes)
    elif settings is not None and _narrows(settings, collective):
        pick = np.full_like(pick, FASTEST)  # of what settings leave
    if (pick == FASTEST).any():
        times = parts(block, figures).total_s.reshape(len(sizes), len(found))
        fastest = times.argmin(axis=1) if settings is None else _allowed(found, settings, collective, times)
        pick = np.where(pick == FASTEST, fastest, pick)
    taken = parts(block.at(np.arange(len(sizes)) * len(found) + pick), figures)
    seen = calibration.has_seen(where.gpu, where.network if where.domains > 1 else None)
    if not seen:
        said.append(
            f"No measurement of {where.gpu} GPUs{f' over {where.network}' if where.domains > 1 else ''} was fitted: "
            "common values were taken, and the interval is wider."
        )
    known_choice = where.library == "NCCL" or found[0].algorithm == "P2P"
    low, high = calibration.factors(where, taken, known_choice)
    return Predictions(
        collective,
        where,
        sizes,
        taken.total_s,
        taken.total_s * low,
        taken.total_s * high,
        tuple(found[place].algorithm for place in pick.tolist()),
        tuple(found[place].protocol for place in pick.tolist()),
        channels,
        taken,
        tuple(said),
    )


def _communicator(
    cluster: Cluster, where: Situation, settings: Settings, version: str, notes: list[str]
) -> Communicator | None:
    node = cluster.node
    hosts = max(1, where.domain_ranks // node.gpus)
    load_constants(version)  # a version that is not known is wrong use, not a choice that is not known
    if node.accelerator.compute_capability is None:
        notes.append("RCCL's own choice is not modelled: the fastest algorithm was taken.")
        return None
    try:
        topology, assumed = node_to_nccl_topology(node, hosts)
        if where.domain_ranks < node.gpus:
            topology = cut_topology(topology, where.domain_ranks, max(1, where.nics) if where.domains > 1 else None)
        model = communicator(topology, where.domains, settings, version)
    except InputError as error:
        notes.append(
            f"NCCL's own choice is not known here ({str(error).splitlines()[0]}): the fastest algorithm was taken."
        )
        return None
    notes += assumed
    notes += settings.notes
    return model


def _chosen(
    model: Communicator, found: Sequence[Movement], collective: str, sizes: IntArray
) -> tuple[IntArray, tuple[int | None, ...]]:
    """The place of what NCCL chooses for each size, and its channels. CollNet, which its model lacks: the fastest is taken."""
    function = function_of(collective)
    if function is None or any(move.algorithm == "CollNetChain" for move in found):
        return np.full(len(sizes), FASTEST, np.int64), (None,) * len(sizes)
    choices = model.choices(function, sizes.tolist())
    places = np.full((len(Algorithm), len(Protocol)), FASTEST, np.int64)
    for place, move in enumerate(found):
        places[Algorithm[move.algorithm], Protocol[move.protocol]] = place
    return places[choices.algorithm, choices.protocol], tuple(choices.channels.tolist())


def _narrows(settings: Settings, collective: str) -> bool:
    """Whether NCCL_ALGO or NCCL_PROTO say anything of a collective."""
    function = function_of(collective)
    return function is not None and (
        settings.allowed_algorithms(function) is not None or settings.allowed_protocols(function) is not None
    )


def _allowed(found: Sequence[Movement], settings: Settings, collective: str, times: FloatArray) -> IntArray:
    function = function_of(collective)
    if function is None:
        fastest: IntArray = times.argmin(axis=1)
        return fastest
    algorithms = settings.allowed_algorithms(function)
    protocols = settings.allowed_protocols(function)
    left = [
        (algorithms is None or Algorithm.__members__.get(move.algorithm) in algorithms)
        and (protocols is None or Protocol[move.protocol] in protocols)
        for move in found
    ]
    if not any(left):
        raise InputError(
            f"NCCL_ALGO and NCCL_PROTO leave nothing to run for {collective}; there is "
            f"{', '.join(sorted({f'{move.algorithm} {move.protocol}' for move in found}))}."
        )
    best: IntArray = np.where(np.array(left), times, np.inf).argmin(axis=1)
    return best


def _sizes(sizes_bytes: Iterable[int]) -> IntArray:
    sizes = list(sizes_bytes)
    wrong = next((size for size in sizes if size < 1 or size >= 1 << 60), None)
    if wrong is not None:
        raise InputError(f"{wrong} bytes: sizes are 1 to 2^60-1.")
    return np.array(sizes, np.int64)
