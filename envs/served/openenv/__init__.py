"""OpenEnv's API, a face of the env server: HTTP, WebSockets and JSON-RPC."""
