"""The kinds of receivers, each an adapter of one port."""
