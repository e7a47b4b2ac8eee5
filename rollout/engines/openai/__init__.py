"""OpenAI-compatible servers that return token ids."""
