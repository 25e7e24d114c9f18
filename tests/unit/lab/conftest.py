"""What the tests of the set-up share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.lab.programs import Programs

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    """Stand-ins for the machine's programs; none yet."""
    return Programs(tmp_path)
