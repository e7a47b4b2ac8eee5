"""Games of TextArena for one player or for several roles: `TextArena/NAME-v0`."""
