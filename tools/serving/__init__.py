"""The serving layer: every HTTP server of the library is built from these; none depends on a server's things."""
