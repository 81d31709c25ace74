"""Soong as an MCP server: tools and resources over the calls of the HTTP API, for one caller (MCP-02)."""
