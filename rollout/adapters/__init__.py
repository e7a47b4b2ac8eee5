"""What other trainers take, made from our envs and trajectories: one file for each trainer."""
