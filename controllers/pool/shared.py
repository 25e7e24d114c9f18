"""What every part of the pool works with: built once by `pool.py`, handed to all."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from controllers.pool.book import Book
from controllers.pool.metrics import PoolMetrics
from controllers.pool.notices import Notices
from controllers.pool.pods import Pods, Resources
from service.kube.client import KubeClient
from service.settings import PoolSettings


@dataclass(frozen=True, slots=True)
class Shared:
    """One replica's view and means. `clock` tells the time of day, aware."""

    client: KubeClient
    book: Book
    pods: Pods
    notices: Notices
    metrics: PoolMetrics
    settings: PoolSettings
    clock: Callable[[], datetime]

    @property
    def resources(self) -> Resources:
        """The two resource names."""
        return Resources(self.settings.resource_count_name, self.settings.resource_memory_name)
