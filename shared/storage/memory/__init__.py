"""The built-in memory provider: Markdown files of the user, searched by SQLite's FTS5."""
