"""What client and server of a sandbox share: `messages`, their fields, and `conversions` between them and results."""
