"""Files that the judge sends to a sandbox. They need only Linux and the standard library: see `in_sandbox`."""
