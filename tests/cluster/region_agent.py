"""`python -m tests.cluster.region_agent NODE`: the region part of a node's agent, alone, with its ops listener."""

import sys

from controllers.regions.agent import RegionAgent
from service import loop
from service.app import _Process
from service.kube.client import KubeClient
from service.settings import Settings, load


async def main(settings: Settings, node: str) -> int:
    process = _Process(settings)
    client = await KubeClient.connect(settings.kube, metrics=process.kube_metrics)
    agent = RegionAgent(settings.regions, client, process.metrics, node=node)
    return await process.run([*process.ops([]), *agent.parts(process.lifecycle)])


if __name__ == "__main__":
    sys.exit(loop.run(main(load(), sys.argv[1])))
