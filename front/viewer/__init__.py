"""Looking at runs: their trajectories as an index, in a terminal, and as a page."""
