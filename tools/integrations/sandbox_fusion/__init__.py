"""SandboxFusion's evaluation endpoints for the sandbox server: data sets, prompts, and programs that are judged."""
