"""Messages between client and server of a sandbox: `messages` of sessions, `fusion` as SandboxFusion has them."""
