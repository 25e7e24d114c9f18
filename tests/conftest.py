"""What every test can use: the lab's fixtures and the detector of blocking calls."""

pytest_plugins = ["tests.lab.plugin"]
