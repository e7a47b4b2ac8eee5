"""Environments behind an address, for trainers that have a URL."""
