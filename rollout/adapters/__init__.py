"""Adapters of trainers, a file or a folder for each, and the pieces that they share."""
