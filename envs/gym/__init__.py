"""Gymnasium's interfaces over our envs, and the spaces of their messages."""
