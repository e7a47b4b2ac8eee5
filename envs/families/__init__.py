"""Families of environments, one folder each; any can be deleted with its tests and its line in the table of ids."""
