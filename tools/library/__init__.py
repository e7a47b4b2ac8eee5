"""The tools that come with the library, one file each."""
