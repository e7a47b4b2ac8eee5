"""The envs of a run, from their making to their end."""
