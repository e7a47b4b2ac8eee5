"""Envs of other projects as envs of toolgym: `wrap`, and one file a project."""
