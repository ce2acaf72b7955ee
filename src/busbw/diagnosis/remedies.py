"""Remedies that several families of rules give."""

__all__ = ["LOOK_AT_THE_RANK", "SAME_CALLS"]

LOOK_AT_THE_RANK = "Look at that rank's stack and log at the time: data loading, compilation, checkpoint, an exception; a longer timeout only hides it."
SAME_CALLS = "Make every rank issue the same collectives in the same order (no rank-dependent branches, same shapes and types, same number of batches)."
