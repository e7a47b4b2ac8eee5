"""The process that forks the children."""
