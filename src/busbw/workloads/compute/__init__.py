"""How long one GPU takes for an operation: efficiency surfaces a GPU, kernel class and number format, and transfer to others.

`forms` are the closed forms, `peaks` what a GPU can do at best, `timing` the time of an operation; `fitting` makes `surfaces.json`
from measured kernels (`python -m busbw.workloads.compute.fitting FOLDER`). Imports hardware and the operations beside it.
"""

from busbw.workloads.compute.timing import LAUNCH_GAP_S, Estimate, gpus, operation_time, operation_times

__all__ = ["LAUNCH_GAP_S", "Estimate", "gpus", "operation_time", "operation_times"]
