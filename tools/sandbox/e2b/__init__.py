"""E2B's API on the sandbox server: control plane, envd and code interpreter, for the official SDKs.

`sandboxes` has what exists, `api`, `envd`, `files_http` and `interpreter` answer requests, and `inside` are programs
that run in a sandbox.
"""
