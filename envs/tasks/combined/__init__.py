"""Sources that are made of several others, which have names."""
