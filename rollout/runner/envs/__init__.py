"""The envs of a run: made, pooled, and kept for suspended episodes."""
