"""Time of a collective: how its data moves, what each part costs, and a Calibration fitted to measurements.

`predict` makes the whole; `situation`, `movement`, `timing` are its parts in that order; `fitting` makes calibrations.
Imports nccl, collectives, hardware and what lies under them.
"""

from busbw.prediction.calibration import (
    COMPONENTS,
    Calibration,
    Parameter,
    Spread,
    load_calibration,
    priors,
    read_calibration,
    size_class,
)
from busbw.prediction.choosing import FASTEST, blueprint_of, chosen, cut_topology, model_in
from busbw.prediction.fitting import Curve, Errors, cross_validated, fit, predicted, predicted_parts, with_deviations
from busbw.prediction.movement import Movement, movements
from busbw.prediction.predict import PREDICTED, Predictions, predict, predict_in
from busbw.prediction.situation import Situation, gpu_class, intra_rate, network_class, situation_of
from busbw.prediction.timing import Moves, Parts, moves_of, parts

__all__ = [
    "COMPONENTS",
    "FASTEST",
    "PREDICTED",
    "Calibration",
    "Curve",
    "Errors",
    "Movement",
    "Moves",
    "Parameter",
    "Parts",
    "Predictions",
    "Situation",
    "Spread",
    "blueprint_of",
    "chosen",
    "cross_validated",
    "cut_topology",
    "fit",
    "gpu_class",
    "intra_rate",
    "load_calibration",
    "model_in",
    "movements",
    "moves_of",
    "network_class",
    "parts",
    "predict",
    "predict_in",
    "predicted",
    "predicted_parts",
    "priors",
    "read_calibration",
    "situation_of",
    "size_class",
    "with_deviations",
]
