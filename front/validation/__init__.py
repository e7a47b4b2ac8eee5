"""Validation of tasks: whether each can be solved as its env says, and is worth nothing untouched."""
