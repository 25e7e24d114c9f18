"""Builds the programs of the lab from pinned Go modules: `binaries()`, or `python -m tests.lab.build [PART ...]`.

Each part is one Go module under `tests/lab/go` with a go.sum. Its programs are built once into `.lab/bin`, and again
when a file of the module or the way it is built changes. Nothing outside the checkout is written.
"""

from tests.lab.build.cache import binaries
from tests.lab.build.golang import BuildError
from tests.lab.build.parts import PARTS

__all__ = ["PARTS", "BuildError", "binaries"]
