"""Who may use the HTTP API: tokens, the rights that they carry, and where they are kept."""
