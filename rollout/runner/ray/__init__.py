"""The runner on several machines: episodes in Ray actors, trajectories as they finish. See docs/ray.md."""
