"""The child: a program, or the cells of a session."""
