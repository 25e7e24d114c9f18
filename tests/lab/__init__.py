"""The lab: a real Kubernetes cluster on this machine, for tests and for `make run`."""

from tests.lab.errors import LabError
from tests.lab.lab import Lab

__all__ = ["Lab", "LabError"]
