"""`python -m charts.tenure.dashboards`: write files/dashboards/*.json anew."""

from charts.tenure.dashboards.write import FOLDER, written

for name, text in written().items():
    (FOLDER / name).write_text(text)
