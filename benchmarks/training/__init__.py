"""The figures of training steps."""
