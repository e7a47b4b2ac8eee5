"""Schedulers, and their parts: the feed of tasks, open groups, plans."""
