"""`python -m tests.chart`: write docs/values.md, docs/settings.md and the chart's values.schema.json anew."""

import json

from tests.chart import settings
from tests.chart.schema import schema
from tests.chart.values import CHART, DOCUMENT, table


def main() -> None:
    """From values.yaml and service/settings."""
    text = (CHART / "values.yaml").read_text()
    DOCUMENT.write_text(table(text))
    settings.DOCUMENT.write_text(settings.table())
    (CHART / "values.schema.json").write_text(json.dumps(schema(text), indent=1) + "\n")


if __name__ == "__main__":
    main()
