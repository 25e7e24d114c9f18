"""Container images made here: no registry is reached, and none is needed.

Format: OCI image layout (image-spec, image-layout.md) in one tar file, as `ctr images import` reads it.
"""

import hashlib
import io
import json
import platform
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

BUSYBOX = "lab.local/busybox:1"
PAUSE = "lab.local/pause:1"

_PROGRAM = Path("/bin/busybox")  # Debian's static one.
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_FOLDERS = ("bin", "dev", "etc", "proc", "sys", "tmp", "var")
_FILES = {
    "etc/passwd": b"root:x:0:0:root:/:/bin/sh\nuser:x:1000:1000:user:/tmp:/bin/sh\n",
    "etc/group": b"root:x:0:\nuser:x:1000:\n",
}
_MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
_CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
_LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"


def archive(
    path: Path,
    reference: str,
    layer: bytes,
    *,
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    entrypoint: Sequence[str] = (),
    user: str = "",
) -> None:
    """Write one image to a tar file. `layer` is an uncompressed tar of its root file system."""
    blobs: dict[str, bytes] = {}

    def blob(content: bytes, media_type: str) -> dict[str, str | int]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

    variables = {"PATH": "/bin:/usr/bin:/usr/local/bin"} | dict(environment or {})
    layer_descriptor = blob(layer, _LAYER_TYPE)
    config = {
        "architecture": _ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": {
            "User": user,
            "Entrypoint": list(entrypoint),
            "Cmd": list(command),
            "Env": [f"{name}={value}" for name, value in variables.items()],
        },
        "rootfs": {"type": "layers", "diff_ids": [layer_descriptor["digest"]]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST_TYPE,
        "config": blob(_json(config), _CONFIG_TYPE),
        "layers": [layer_descriptor],
    }
    entry = blob(_json(manifest), _MANIFEST_TYPE) | {"annotations": {"io.containerd.image.name": reference}}
    with tarfile.open(path, "w") as tar:
        _add(tar, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}), mode=0o644)
        _add(tar, "index.json", _json({"schemaVersion": 2, "manifests": [entry]}), mode=0o644)
        for name, content in blobs.items():
            _add(tar, name, content, mode=0o644)


def busybox_layer() -> bytes:
    """A root file system with busybox and all its applets in /bin, and a user 1000."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for folder in _FOLDERS:
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            tar.addfile(entry)
        for name, content in _FILES.items():
            _add(tar, name, content, mode=0o644)
        _add(tar, "bin/busybox", _PROGRAM.read_bytes(), mode=0o755)
        for applet in _applets():
            entry = tarfile.TarInfo(f"bin/{applet}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(entry)
    return buffer.getvalue()


def _applets() -> list[str]:
    listed = subprocess.run([_PROGRAM, "--list"], capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split() if name != "busybox"]


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _add(tar: tarfile.TarFile, name: str, content: bytes, *, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))
