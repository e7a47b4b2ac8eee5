"""Kinds of sessions of a session server: a task's repository, any env, a SandboxFusion server."""
