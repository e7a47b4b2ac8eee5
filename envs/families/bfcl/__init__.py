"""The executable multi-turn tasks of the Berkeley Function-Calling Leaderboard: `BFCL/multi_turn_base-v0` and more."""
