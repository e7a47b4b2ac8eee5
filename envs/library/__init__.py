"""The envs that have an id, one file each."""
