"""The envs that have an id, one file each; docs/envs has a page of each."""
