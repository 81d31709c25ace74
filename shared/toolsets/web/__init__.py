"""Tools that read from the web (NET-01). Everything that they return was written by strangers."""
