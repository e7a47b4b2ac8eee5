"""What runs in a child: a program, or the cells of a session."""
