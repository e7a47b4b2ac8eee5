"""Envs with several roles: a base class, and what lets each role be an episode of its own."""
