"""What only a GPU can show, in one run of less than ten minutes: `python -m benchmarks.gpu`."""
