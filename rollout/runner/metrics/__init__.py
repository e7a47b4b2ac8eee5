"""What a run does, in figures: while it goes on and at its end."""
