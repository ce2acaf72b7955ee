"""What a collective is and what its bus bandwidth means. Schedules and plans join here later.

Imports nothing of busbw but units, errors, statistics and hardware.
"""

from busbw.collectives.kinds import COLLECTIVES, bus_factor, collective_named

__all__ = ["COLLECTIVES", "bus_factor", "collective_named"]
