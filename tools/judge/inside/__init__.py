"""What the judge runs inside a sandbox. It needs only Linux and the standard library: see `in_sandbox`."""
