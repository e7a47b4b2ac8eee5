"""Images that tasks bring: read from disk, unpacked once without root or daemon, and shared by all sessions."""
