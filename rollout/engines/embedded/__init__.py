"""A transformers model in this process."""
