"""Contracts of other projects that stand on the sandbox: Inspect AI, Harbor, SandboxFusion's data sets."""
