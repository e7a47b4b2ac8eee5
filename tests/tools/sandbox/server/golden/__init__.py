"""What SandboxFusion answers to many requests, recorded, and where our server answers otherwise."""
