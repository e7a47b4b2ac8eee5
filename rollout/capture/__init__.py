"""A gateway for agents that know nothing of us: it answers their requests, and keeps the exact tokens."""
