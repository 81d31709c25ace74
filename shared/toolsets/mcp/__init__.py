"""MCP servers of the user as sources of tools: discovery, the pool of running servers, and their calls (MCP-01)."""
