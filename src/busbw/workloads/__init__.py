"""What a training step consists of and how long it takes: models, layouts, operations, their time on a GPU.

`operations` are the nouns that the rooms below share; `compute/` times an operation on a GPU; `training/` makes the operations of a step from a model and a
layout. Imports prediction, simulation and what lies under them.
"""
