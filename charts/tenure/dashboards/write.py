"""The dashboards as the files of the chart."""

import json
from collections.abc import Mapping
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from charts.tenure.dashboards import health, occupancy, pool

FOLDER = Path(__file__).parents[1] / "files" / "dashboards"


def written() -> Mapping[str, str]:
    """File name to content."""
    boards = {"pool": pool.BOARD, "occupancy": occupancy.BOARD, "health": health.BOARD}
    return {f"tenure-{name}.json": _json(board.build()) for name, board in boards.items()}


def _json(board: object) -> str:
    return json.dumps(board, cls=JSONEncoder, indent=1, sort_keys=True) + "\n"
