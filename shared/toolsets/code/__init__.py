"""The code toolset: reading, listing, searching and writing files of a project.

``code_tools()`` gives the definitions, ``CodeTools`` is the same as a source for the registry.
"""

from soong.shared.toolsets.code.toolset import CodeTools, code_tools

__all__ = ["CodeTools", "code_tools"]
