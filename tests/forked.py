"""A process of pytest-xdist that begins with everything imported: what its interpreter would be told to run."""

import sys

if __name__ == "__main__":
    exec(eval(sys.stdin.readline()))  # the words of execnet's own command
