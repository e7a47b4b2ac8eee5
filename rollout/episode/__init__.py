"""One episode of a policy and an env: its state, its budget, and what it leaves."""
