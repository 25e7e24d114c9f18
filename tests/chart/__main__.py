"""`python -m tests.chart`: write docs/values.md and the chart's values.schema.json anew."""

import json

from tests.chart.schema import schema
from tests.chart.values import CHART, DOCUMENT, table


def main() -> None:
    """Both from values.yaml, the settings' part of the schema from service/settings.py."""
    text = (CHART / "values.yaml").read_text()
    DOCUMENT.write_text(table(text))
    (CHART / "values.schema.json").write_text(json.dumps(schema(text), indent=1) + "\n")


if __name__ == "__main__":
    main()
