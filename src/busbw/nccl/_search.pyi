"""NCCL's channel search: one try at a time."""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray


class Wish:
    """What a try looks for; rates of one channel, 1e9 bytes a second."""

    def __init__(self, pattern: int, several_nodes: bool, least_channels: int, most_channels: int) -> None: ...

    def copy(self) -> Wish:
        """The same, on its own."""

    @property
    def pattern(self) -> int: ...

    @pattern.setter
    def pattern(self, arg: int, /) -> None: ...

    @property
    def least_channels(self) -> int: ...

    @least_channels.setter
    def least_channels(self, arg: int, /) -> None: ...

    @property
    def most_channels(self) -> int: ...

    @most_channels.setter
    def most_channels(self, arg: int, /) -> None: ...

    @property
    def cross_nic(self) -> int: ...

    @cross_nic.setter
    def cross_nic(self, arg: int, /) -> None: ...

    @property
    def same_channels(self) -> bool: ...

    @same_channels.setter
    def same_channels(self, arg: bool, /) -> None: ...

    @property
    def intra(self) -> float: ...

    @intra.setter
    def intra(self, arg: float, /) -> None: ...

    @property
    def inter(self) -> float: ...

    @inter.setter
    def inter(self, arg: float, /) -> None: ...

    @property
    def type_intra(self) -> int: ...

    @type_intra.setter
    def type_intra(self, arg: int, /) -> None: ...

    @property
    def type_inter(self) -> int: ...

    @type_inter.setter
    def type_inter(self, arg: int, /) -> None: ...

    @property
    def hops(self) -> int: ...

    @hops.setter
    def hops(self, arg: int, /) -> None: ...

class Channels:
    """Channels found, none to begin with."""

    def __init__(self, wish: Wish) -> None: ...

    @property
    def wish(self) -> Wish: ...

    @wish.setter
    def wish(self, arg: Wish, /) -> None: ...

    @property
    def channels(self) -> int: ...

    @channels.setter
    def channels(self, arg: int, /) -> None: ...

    @property
    def latency_us(self) -> float: ...

    @property
    def gpus(self) -> list[int]:
        """(channels x GPUs), and what a try wrote beyond."""

    @gpus.setter
    def gpus(self, arg: Sequence[int], /) -> None: ...

    @property
    def nets(self) -> list[int]:
        """(channels x 2), and what a try wrote beyond."""

    @nets.setter
    def nets(self, arg: Sequence[int], /) -> None: ...

class ChannelSearch:
    """
    The node that channels are laid into; its links keep their rounding from try to try.
    """

    def __init__(self, link_gb_per_s: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], path_type: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], path_gb_per_s: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], path_begin: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], path_links: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], net_gb_per_s: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], net_latency_us: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], net_numbers: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], local_gpus: Sequence[Sequence[int]], gpu_pci: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], has_nvswitch: bool) -> None:
        """
        Columns as float32 and int32. path_links: (steps x 4), flat; net_numbers: (nets x 6), flat; gpu_pci: (GPUs x 2), flat.
        """

    def attempt(self, wish: Wish, best: Channels, nets: Sequence[int], nets_of_gpu: Sequence[Sequence[int]], budget: int, budget_in_order: int) -> int:
        """
        Looks for channels better than best and puts them there. Returns the steps left; -1 if nothing can be better.
        """
