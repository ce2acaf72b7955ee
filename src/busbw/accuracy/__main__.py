"""`python -m busbw.accuracy FOLDER`: the calibration of training steps that ships, fitted to a folder of workload files."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from busbw.accuracy.training import left_out_steps, read_folder, steps_of
from busbw.workloads import training
from busbw.workloads.training.calibration import figures_of, to_json
from busbw.workloads.training.step import times


def main() -> int:
    """Writes the calibration of a folder's rows over the one that ships; the exit status."""
    rows = read_folder(Path(sys.argv[1])) if len(sys.argv) == 2 else []
    if not rows:
        print("give a folder of workload files of kind training: python -m busbw.accuracy FOLDER", file=sys.stderr)
        return 2
    whole, _ = left_out_steps(rows)
    target = Path(training.__file__).parent / "calibration.json"
    target.write_text(json.dumps(to_json(whole), indent=1) + "\n", encoding="utf-8")
    steps = steps_of(rows)
    error = np.abs(times(steps.parts, figures_of(steps.jobs, whole)).total_s / steps.measured_s - 1)
    print(f"{len(rows)} rows, in sample MAPE {error.mean():.3f}, written to {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
