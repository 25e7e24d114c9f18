"""What is made of the chart's values: the table in docs/values.md and values.schema.json."""
