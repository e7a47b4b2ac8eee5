"""The Open Reward Standard, a face of the env server."""
