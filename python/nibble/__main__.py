"""`python -m nibble` and the console script: the program of the same name."""

from __future__ import annotations

import os
import sys
from importlib.resources import files


def main() -> int:
    """Becomes the program nibble of this package with the arguments of this process."""
    program = files("nibble").joinpath("bin", "nibble")
    if not program.is_file():
        print("nibble: the program is not part of this installation; build the wheel with `make wheel`", file=sys.stderr)
        return 2
    sys.stdout.flush()
    os.execv(str(program), ["nibble", *sys.argv[1:]])
    return 0


if __name__ == "__main__":
    sys.exit(main())
