"""Games of TextArena for one player: `TextArena/NAME-v0`."""
