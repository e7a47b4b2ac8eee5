"""What an episode leaves: token sequences, trajectories, and their files."""
