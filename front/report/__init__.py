"""Figures of runs, with intervals and plots."""
