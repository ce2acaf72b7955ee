"""A cluster on one machine: hosts that are network namespaces, joined by links of a known rate; what runs there is measured, simulated and predicted.

`namespaces` starts the hosts, `running` runs plans on them, `gloo` its rival, `predicting` calibrates on one pair and predicts, `circle` closes
design, prediction, run and diagnosis. `python -m benchmarks.minicluster` shows them all.
"""
