"""Views of trajectories, groups and batches in a notebook."""
