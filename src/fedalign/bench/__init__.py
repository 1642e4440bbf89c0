"""Seconds, operations and memory, ours beside an ordinary padded implementation of the same training."""
