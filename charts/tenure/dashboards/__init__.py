"""The Grafana dashboards of the chart, from which files/dashboards/*.json is written (`make generate`)."""
