"""One module for each project whose envs can be wrapped."""
