"""Time of a collective: how its data moves, what each part costs, and a Calibration fitted to measurements.

`predict` makes the whole; `situation`, `movement`, `timing` are its parts in that order; `fitting` makes calibrations.
Imports nccl, collectives, hardware and what lies under them.
"""

from busbw.prediction.calibration import (
    Calibration,
    Parameter,
    Spread,
    interval_class,
    load_calibration,
    priors,
    read_calibration,
    size_class,
)
from busbw.prediction.fitting import Curve, cross_validated, fit, predicted, with_spreads
from busbw.prediction.movement import Movement, movements
from busbw.prediction.predict import PREDICTED, Predictions, predict, predict_in
from busbw.prediction.situation import Situation, gpu_class, intra_rate, network_class, situation_of
from busbw.prediction.timing import Moves, Parts, moves_of, parts

__all__ = [
    "PREDICTED",
    "Calibration",
    "Curve",
    "Movement",
    "Moves",
    "Parameter",
    "Parts",
    "Predictions",
    "Situation",
    "Spread",
    "cross_validated",
    "fit",
    "gpu_class",
    "interval_class",
    "intra_rate",
    "load_calibration",
    "movements",
    "moves_of",
    "network_class",
    "parts",
    "predict",
    "predict_in",
    "predicted",
    "priors",
    "read_calibration",
    "situation_of",
    "size_class",
    "with_spreads",
]
