"""What NCCL itself would do: its variables and their defaults now; channel search, cost table and choice join here later.

Imports hardware, collectives, observations and what lies under them; nothing of readers' users.
"""

from busbw.nccl.variables import Variable, find_variable, load_variables

__all__ = ["Variable", "find_variable", "load_variables"]
