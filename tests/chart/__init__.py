"""What is made of the chart's values and the program's settings: the tables in docs/ and values.schema.json."""
