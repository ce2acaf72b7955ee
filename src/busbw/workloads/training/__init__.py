"""Training steps: models, layouts, memory, the operators of a step and their time; importers live beside this folder.

`models` and `layout` are the nouns; `operators` makes a layer's work of them, `step` its time in closed form, `program` a TaskProgram.
"""
