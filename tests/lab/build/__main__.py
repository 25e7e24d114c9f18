"""`python -m tests.lab.build [PART ...]` builds the named parts, or all of them.

Exit code 1: the build failed; 2: there is no such part.
"""

from __future__ import annotations

import os
import sys

from tests.lab.build.cache import binaries
from tests.lab.build.golang import BuildError
from tests.lab.build.parts import PARTS, UnknownPartError


def main(names: list[str]) -> int:
    """Build the named parts and return the exit code."""
    try:
        folder = binaries(names or PARTS)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, UnknownPartError) else 1
    except KeyboardInterrupt:
        print("Stopped. What is compiled is kept; the next build goes on from there.", file=sys.stderr)
        return 130
    print(f"The lab's programs are in {os.path.relpath(folder)}.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
