"""Rewards on tokens, rewards of a group, and advantages."""
