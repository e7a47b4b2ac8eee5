"""Deadlines, rate limits, the execution pool, and an event loop in a thread of its own."""
