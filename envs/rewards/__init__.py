"""What an episode is worth."""
