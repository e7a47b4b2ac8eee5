"""Records of episodes: token sequences, trajectories, and their files."""
