"""The HTTP server around captured episodes: identity, sessions, their ends and their files."""
