"""One lab for GPU communication: measure, explain, predict and design what NCCL and its kin do.

Importing this package loads nothing else; take what you need from its rooms, such as `busbw.diagnosis`.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
