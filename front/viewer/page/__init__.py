"""The viewer as a page: one file, or served beside a run that goes on."""
