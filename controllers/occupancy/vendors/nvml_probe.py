"""Ask NVML in a process of its own: a driver in trouble may hang or crash whoever asks.

Prints a JSON list, one object for each card: uuid, bdf, minor, name, mig, pids; `pids` is null when the card's
processes cannot be listed. Exit code 2: NVML does not load or does not start; its reason is the only line on stdout.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import pynvml


def main() -> int:
    """Print the list; the exit code."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        sys.stdout.write(f"{error}\n")
        return 2
    sys.stdout.write(json.dumps([_card(index) for index in range(pynvml.nvmlDeviceGetCount())]))
    return 0


def _card(index: int) -> dict[str, Any]:
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuid = pynvml.nvmlDeviceGetUUID(handle)
    except pynvml.NVMLError as error:
        return {"error": str(error)}
    return {
        "uuid": uuid,
        "bdf": _or_none(lambda: pynvml.nvmlDeviceGetPciInfo(handle).busId),
        "minor": _or_none(lambda: pynvml.nvmlDeviceGetMinorNumber(handle)),
        "name": _or_none(lambda: pynvml.nvmlDeviceGetName(handle)),
        "mig": _or_none(lambda: pynvml.nvmlDeviceGetMigMode(handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE),
        "pids": _or_none(lambda: [p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]),
    }


def _or_none(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except pynvml.NVMLError:
        return None


if __name__ == "__main__":
    sys.exit(main())
