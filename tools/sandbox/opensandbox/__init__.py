"""OpenSandbox's API on the sandbox server: its lifecycle, and for each sandbox what its `execd` answers.

The sandboxes, programs, contexts and files are those of E2B's API, which this one says in OpenSandbox's words.
"""
