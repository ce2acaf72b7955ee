"""Every figure that README and docs state, to be seen again: `python -m benchmarks`. One folder a verb, one row a figure."""
