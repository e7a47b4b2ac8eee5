"""Repositories to repair: the task, its sandboxed folder, and the verdict of its tests."""
