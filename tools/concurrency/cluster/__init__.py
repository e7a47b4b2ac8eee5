"""Limits that all processes of a Ray cluster share. See docs/ray.md."""
