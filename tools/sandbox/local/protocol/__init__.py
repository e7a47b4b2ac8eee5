"""Messages between the processes of the local sandbox."""
