"""What trainers take, made from our envs and trajectories: a file or a folder for each trainer."""
