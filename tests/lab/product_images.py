"""The product's image and a kube-scheduler's, under the names that the chart asks for: no container engine is needed.

What the Containerfile at the top of the repository describes, made from this machine's Debian packages: Python and the
libraries that it and the locked dependencies link, the product's wheel, and nothing else, not even a shell.
"""

import hashlib
import io
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from tests.lab import images
from tests.lab.build import binaries
from tests.lab.build.parts import CONTROL_PLANE, pinned_version
from tests.lab.errors import LabError
from tests.lab.layout import REPOSITORY

CACHE: Final = REPOSITORY / ".lab" / "images"
USER: Final = 65532  # As the Containerfile's, and `nonroot` of other small images.
PYTHON: Final = Path("/usr/bin/python3")  # Debian's, whatever Python the environment of the tests has.
_PACKAGES: Final = ("service", "webhook", "controllers", "certs")
_SOURCES: Final = (
    *_PACKAGES,
    "pyproject.toml",
    "README.md",
    "requirements.txt",
    "tests/lab/product_images.py",
)
# Debian 12 and later: these are links, and packages list their files on either side of them.
_MERGED: Final = ("bin", "lib", "lib64", "sbin")
_LEFT_OUT: Final = re.compile(r"/usr/share/(?!zoneinfo)|/(test|tests|idlelib|ensurepip|lib2to3)/|\.py[co]$")
_LINKED: Final = re.compile(r"=> (/\S+) \(|^\s*(/lib64/ld-\S+) \(", re.MULTILINE)
_FILES: Final = {
    "etc/passwd": f"root:x:0:0:root:/:/sbin/nologin\ntenure:x:{USER}:{USER}:tenure:/:/sbin/nologin\n",
    "etc/group": f"root:x:0:\ntenure:x:{USER}:\n",
    "etc/nsswitch.conf": "hosts: files dns\n",
}
_FOLDERS: Final = ("dev", "etc", "proc", "sys", "tmp", "var/run")


def product() -> Path:
    """The archive of the image `tenure:VERSION`, made when it is not there for exactly these sources."""
    digest = _digest()
    archive = CACHE / f"tenure-{digest}.tar"
    if not archive.exists():
        _tidy("tenure-*.tar")
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            root = Path(folder, "root")
            _python(root)
            _install(root, Path(folder))
            _libraries(root)
            _compile(root)
            draft = Path(folder, "image.tar")
            images.archive(
                draft,
                f"docker.io/library/tenure:{version()}",
                _tar(root),
                command=["--help"],
                entrypoint=["tenure"],
                user=f"{USER}:{USER}",
                environment={"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"},
            )
            draft.rename(archive)
    return archive


def scheduler() -> Path:
    """The archive of `registry.k8s.io/kube-scheduler:VERSION`, made of the lab's own build."""
    tag = pinned_version(CONTROL_PLANE)
    archive = CACHE / f"kube-scheduler-{tag}.tar"
    program = binaries(["control-plane"]) / "cluster"
    if not archive.exists() or archive.stat().st_mtime < program.stat().st_mtime:
        _tidy("kube-scheduler-*.tar")
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            root = Path(folder, "root")
            _skeleton(root)
            _place(program, root, "/usr/local/bin/cluster")
            _place(Path("/bin/busybox"), root, "/usr/local/bin/busybox")
            script = root / "usr/local/bin/kube-scheduler"
            script.write_text(
                '#!/usr/local/bin/busybox sh\nexec /usr/local/bin/cluster kube-scheduler "$@"\n'
            )
            script.chmod(0o755)
            _libraries(root)
            draft = Path(folder, "image.tar")
            reference = f"registry.k8s.io/kube-scheduler:{tag}"
            images.archive(draft, reference, _tar(root), command=["kube-scheduler"])
            draft.rename(archive)
    return archive


def version() -> str:
    """The product's, which the chart takes for the image's tag."""
    found = re.search(r'^version = "(.+)"$', (REPOSITORY / "pyproject.toml").read_text(), re.MULTILINE)
    if found is None:
        raise LabError("pyproject.toml names no version")
    return found[1]


def _tidy(pattern: str) -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    for old in CACHE.glob(pattern):
        old.unlink()


def _digest() -> str:
    content = hashlib.sha256(f"{platform.machine()} {PYTHON.resolve()}".encode())
    for path in _source_files():
        content.update(f"{path.relative_to(REPOSITORY)}\0".encode() + path.read_bytes())
    return content.hexdigest()[:16]


def _source_files() -> Iterator[Path]:
    for name in _SOURCES:
        path = REPOSITORY / name
        inside = sorted(found for found in path.rglob("*") if "__pycache__" not in found.parts)
        yield from filter(Path.is_file, inside) if path.is_dir() else (path,)


def _skeleton(root: Path) -> None:
    for name in _FOLDERS:
        (root / name).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    for name in _MERGED:
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    for name, text in _FILES.items():
        (root / name).write_text(text)


def _python(root: Path) -> None:
    """Debian's minimal Python with its standard library."""
    _skeleton(root)
    name = PYTHON.resolve().name
    for package in (f"{name}-minimal", f"lib{name}-minimal", f"lib{name}-stdlib"):
        for listed in _run("dpkg-query", "--listfiles", package).splitlines():
            path = Path(listed)
            if not _LEFT_OUT.search(listed) and (path.is_symlink() or path.is_file()):
                _place(path, root, listed)


def _install(root: Path, scratch: Path) -> None:
    """The locked dependencies by their hashes, then the product's wheel."""
    target = root / "usr/local/lib" / PYTHON.resolve().name / "dist-packages"
    wheel = _wheel(scratch)
    minor = PYTHON.resolve().name.removeprefix("python")
    common = ["--target", str(target), "--no-deps", "--no-compile", "--quiet", "--only-binary=:all:"]
    common += ["--python-version", minor, "--implementation", "cp", "--disable-pip-version-check"]
    pip = (sys.executable, "-m", "pip", "install", *common)
    _run(*pip, "--require-hashes", "--requirement", str(REPOSITORY / "requirements.txt"))
    _run(*pip, "--upgrade", str(wheel))
    script = target / "bin" / "tenure"
    program = root / "usr/local/bin/tenure"
    program.parent.mkdir(parents=True, exist_ok=True)
    _, _, code = script.read_text().partition("\n")
    program.write_text(f"#!{PYTHON.resolve()}\n{code}")
    program.chmod(0o755)
    shutil.rmtree(target / "bin")


def _wheel(scratch: Path) -> Path:
    """Built in a copy: setuptools leaves folders beside its sources."""
    copy = scratch / "source"
    for path in _source_files():
        target = copy / path.relative_to(REPOSITORY)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
    output = scratch / "wheel"
    build = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet")
    _run(*build, "--wheel-dir", str(output), str(copy))
    (wheel,) = output.glob("*.whl")
    return wheel


def _libraries(root: Path) -> None:
    """What the programs in the root folder are linked with, from this machine."""
    for program in _elf_files(root):
        listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
        for library in filter(None, (a or b for a, b in _LINKED.findall(listed))):
            if not library.startswith(str(root)):
                _place(Path(library).resolve(), root, library)


def _elf_files(root: Path) -> list[Path]:
    def is_elf(path: Path) -> bool:
        if path.is_symlink() or not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(4) == b"\x7fELF"

    return [path for path in root.rglob("*") if is_elf(path)]


def _compile(root: Path) -> None:
    """Bytecode now: the root of a container is read-only. A cached file counts without a look at the source's time."""
    folders = [root / "usr/lib" / PYTHON.resolve().name, root / "usr/local/lib" / PYTHON.resolve().name]
    options = ("--invalidation-mode", "unchecked-hash", "-s", str(root), "-p", "/")
    _run(str(PYTHON), "-m", "compileall", "-q", "-j", str(os.cpu_count() or 1), *options, *map(str, folders))


def _place(source: Path, root: Path, name: str) -> None:
    """A file or link of this machine at its path in the root folder."""
    first, _, rest = name.lstrip("/").partition("/")
    target = root / ("usr" if first in _MERGED else "") / first / rest
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.is_symlink() and not target.exists():
        shutil.copy2(source, target, follow_symlinks=False)


def _tar(root: Path) -> bytes:
    """All of it, root's, and the same bytes for the same files."""

    def anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        return entry

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path in _sorted(root.iterdir()):
            tar.add(path, arcname=path.name, filter=anonymous)
    return buffer.getvalue()


def _sorted(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: path.name)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LabError(f"`{' '.join(command[:4])} ...` failed: {done.stderr.strip()[-2000:]}")
    return done.stdout
