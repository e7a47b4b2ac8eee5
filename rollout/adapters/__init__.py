"""Adapters to trainers: one file or folder a trainer, which is imported only when it is used."""
