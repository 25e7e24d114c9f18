"""The images that are made here follow the OCI image layout."""

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

from tests.lab.images import archive


def read(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {name: tar.extractfile(name).read() for name in tar.getnames()}  # type: ignore[union-attr] # All are files.


def layer() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("empty"))
    return buffer.getvalue()


def test_every_reference_leads_to_a_blob_of_that_digest_and_size(tmp_path: Path) -> None:
    path = tmp_path / "image.tar"
    archive(path, "lab.local/x:1", layer(), command=["run"], environment={"A": "b"})
    files = read(path)

    def follow(descriptor: Any) -> bytes:
        content = files["blobs/" + descriptor["digest"].replace(":", "/")]
        assert len(content) == descriptor["size"]
        assert descriptor["digest"] == "sha256:" + hashlib.sha256(content).hexdigest()
        return content

    (entry,) = json.loads(files["index.json"])["manifests"]
    assert entry["annotations"] == {"io.containerd.image.name": "lab.local/x:1"}
    manifest = json.loads(follow(entry))
    config = json.loads(follow(manifest["config"]))
    assert follow(manifest["layers"][0]) == layer()
    assert config["rootfs"]["diff_ids"] == [manifest["layers"][0]["digest"]]
    assert config["config"]["Cmd"] == ["run"]
    assert "A=b" in config["config"]["Env"]
