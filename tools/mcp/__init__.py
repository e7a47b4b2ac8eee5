"""Tools of MCP servers, through the official SDK (extra `mcp`)."""
