"""The host's side: the sandbox and its sessions, and handles on template processes."""
