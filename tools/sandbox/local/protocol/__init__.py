"""What the processes of the local sandbox say to each other."""
