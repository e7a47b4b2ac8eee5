"""Schedulers, and their parts: the feed of tasks, the tracker of groups, plans."""
