"""The viewer in a terminal."""
