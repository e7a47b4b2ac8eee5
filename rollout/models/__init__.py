"""Tokenizers, models of the hub, and the tiny policy."""
