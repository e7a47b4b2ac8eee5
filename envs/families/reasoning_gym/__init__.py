"""The generators of reasoning-gym as envs: `ReasoningGym/NAME-v0`."""
