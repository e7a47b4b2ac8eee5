"""Many episodes at once."""
