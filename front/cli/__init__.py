"""The `toolgym` command, one file a command."""
