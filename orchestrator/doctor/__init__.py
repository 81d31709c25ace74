"""The checks of ``soong doctor``: problems of a machine, its home and its service, each with a fix."""
