import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from controllers.regions import safefs
from controllers.regions.safefs import Folder, Opener, Reason, RefusedError

OPENERS = [safefs.kernel_opener, safefs.walking_opener]


@pytest.fixture(params=OPENERS, ids=["openat2", "walk"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Folder]:
    (tmp_path / "tenant").mkdir()
    opener: Opener = request.param
    with Folder.trusted(tmp_path / "tenant", opener=opener) as opened:
        yield opened


@pytest.fixture
def tenant(folder: Folder, tmp_path: Path) -> Path:
    return tmp_path / "tenant"


def refusal(folder: Folder, path: str, size: int | None = 4) -> Reason:
    with pytest.raises(RefusedError) as caught, folder.regular(path, size=size, write=True):
        pass
    return caught.value.reason


def test_this_kernel_is_used_with_openat2_where_it_has_it() -> None:
    assert safefs.best_opener() is safefs.kernel_opener


def test_a_regular_file_of_the_expected_size_is_opened(folder: Folder, tenant: Path) -> None:
    (tenant / "f").write_bytes(b"1234")
    with folder.regular("f", size=4) as fd:
        assert os.read(fd, 9) == b"1234"
        assert os.get_inheritable(fd) is False


def test_a_file_below_is_reached_and_one_through_a_link_is_not(folder: Folder, tenant: Path) -> None:
    (tenant / "config").mkdir()
    (tenant / "config" / "f").write_bytes(b"1234")
    (tenant / "away").symlink_to("config")
    with folder.regular("config/f", size=4):
        pass
    assert refusal(folder, "away/f") in {Reason.LINK, Reason.NOT_REGULAR}


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "config/../../secret", "..", "."])
def test_no_path_leads_out(folder: Folder, tenant: Path, path: str) -> None:
    (tenant / "config").mkdir()
    (tenant.parent / "secret").write_bytes(b"1234")
    with pytest.raises(RefusedError), folder.regular(path, size=None):
        pass


def test_a_symbolic_link_is_refused(folder: Folder, tenant: Path) -> None:
    (tenant.parent / "secret").write_bytes(b"1234")
    (tenant / "f").symlink_to(tenant.parent / "secret")
    assert refusal(folder, "f") is Reason.LINK


def test_a_second_name_is_refused(folder: Folder, tenant: Path) -> None:
    (tenant / "f").write_bytes(b"1234")
    (tenant / "g").hardlink_to(tenant / "f")
    assert refusal(folder, "f") is Reason.HARD_LINK


def test_a_file_from_elsewhere_that_was_linked_in_and_out_again_is_refused(tmp_path: Path) -> None:
    """Between our two steps its name here goes: what is left is one name, elsewhere."""
    (tmp_path / "secret").write_bytes(b"1234")
    (tmp_path / "tenant").mkdir()
    (tmp_path / "tenant" / "f").hardlink_to(tmp_path / "secret")

    def opener(directory: int, path: str, flags: int) -> int:
        fd = safefs.kernel_opener(directory, path, flags)
        (tmp_path / "tenant" / path).unlink()
        return fd

    with Folder.trusted(tmp_path / "tenant", opener=opener) as folder:
        assert refusal(folder, "f") is Reason.SWAPPED


def test_a_pipe_is_refused_and_does_not_block(folder: Folder, tenant: Path) -> None:
    os.mkfifo(tenant / "f")
    assert refusal(folder, "f") is Reason.NOT_REGULAR


def test_a_socket_and_a_folder_are_refused(folder: Folder, tenant: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tenant / "f"))
    (tenant / "d").mkdir()
    assert refusal(folder, "f") is Reason.NOT_REGULAR
    assert refusal(folder, "d") is Reason.NOT_REGULAR


def test_a_device_is_refused_without_being_opened(root: None, folder: Folder, tenant: Path) -> None:
    os.mknod(tenant / "f", 0o600 | 0o020000, os.makedev(240, 0))  # opening it would say: no such device
    assert refusal(folder, "f") is Reason.NOT_REGULAR


def test_a_sparse_giant_is_refused(folder: Folder, tenant: Path) -> None:
    (tenant / "f").touch()
    os.truncate(tenant / "f", 1 << 40)
    assert refusal(folder, "f") is Reason.SIZE


def test_a_file_under_its_owners_lease_is_refused_at_once(folder: Folder, tenant: Path) -> None:
    (tenant / "f").write_bytes(b"1234")
    fd = os.open(tenant / "f", os.O_RDWR)
    fcntl.fcntl(fd, fcntl.F_SETSIG, 23)
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    assert refusal(folder, "f") is Reason.LEASED
    os.close(fd)


def test_a_missing_file_is_simply_missing(folder: Folder) -> None:
    with pytest.raises(FileNotFoundError), folder.regular("f", size=None):
        pass


def test_a_name_that_became_another_file_is_noticed(folder: Folder, tenant: Path) -> None:
    (tenant / "f").write_bytes(b"1234")
    with folder.regular("f", size=4) as fd:
        assert folder.has("f", safefs.file_id(fd))
        (tenant / "g").write_bytes(b"1234")
        (tenant / "g").rename(tenant / "f")
        assert not folder.has("f", safefs.file_id(fd))


def test_a_folder_gets_its_mode_whatever_the_umask(folder: Folder, tenant: Path) -> None:
    before = os.umask(0o077)
    folder.make("leaf", 0o777)
    folder.make("leaf", 0o777)
    os.umask(before)
    assert (tenant / "leaf").stat().st_mode & 0o7777 == 0o777


def test_a_link_in_place_of_a_folder_is_not_followed(folder: Folder, tenant: Path) -> None:
    (tenant.parent / "elsewhere").mkdir(mode=0o700)
    (tenant / "leaf").symlink_to(tenant.parent / "elsewhere")
    with pytest.raises(RefusedError):
        folder.make("leaf", 0o777)
    with pytest.raises(RefusedError):
        folder.folder("leaf")
    assert (tenant.parent / "elsewhere").stat().st_mode & 0o777 == 0o700


def test_emptying_follows_no_link(folder: Folder, tenant: Path) -> None:
    keep = tenant.parent / "keep"
    keep.mkdir()
    (keep / "precious").touch()
    (tenant / "a" / "b").mkdir(parents=True)
    (tenant / "a" / "b" / "f").touch()
    (tenant / "a" / "out").symlink_to(keep)
    (tenant / "out").symlink_to(keep)
    os.mkfifo(tenant / "p")
    folder.empty()
    assert list(tenant.iterdir()) == []
    assert (keep / "precious").exists()


def test_emptying_stops_at_a_flood_of_levels(folder: Folder, tenant: Path) -> None:
    deep = tenant.joinpath(*["d"] * (safefs.MOST_DEPTH + 1))
    deep.mkdir(parents=True)
    with pytest.raises(RefusedError) as caught:
        folder.empty()
    assert caught.value.reason is Reason.FLOOD


def test_emptying_stops_at_a_flood_of_names(
    folder: Folder, tenant: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safefs, "MOST_ENTRIES", 10)
    for number in range(12):
        (tenant / str(number)).touch()
    with pytest.raises(RefusedError) as caught:
        folder.empty()
    assert caught.value.reason is Reason.FLOOD
