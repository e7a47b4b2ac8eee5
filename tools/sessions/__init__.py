"""A sandbox session for a tool in an episode, or for all tools of it."""
