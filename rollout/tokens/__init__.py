"""Messages to token ids and back, exactly as the chat template writes them."""
