"""Figures of a run: while it goes on and at its end."""
