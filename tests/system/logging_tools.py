"""A tool of a module that writes, and raises."""

from soong import Permission, Toolset

tools = Toolset()


@tools.tool("logs.shout", permission=Permission.READONLY)
def shout(text: str) -> str:
    """Say it aloud."""
    print("shouted", text)
    raise OSError("hoarse")
