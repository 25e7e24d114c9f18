"""What every test can use: the lab's fixtures, those of a host, and the detector of blocking calls."""

import os

from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.lab.plugin", "tests.host"]

# No test is timed, so no example has a deadline. A change must not fail for an example that another change made: new
# ones are looked for at home, not where changes are judged.
settings.register_profile(
    "project",
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("project")
