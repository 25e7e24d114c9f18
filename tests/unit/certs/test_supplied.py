"""Certificates that somebody else supplies: field case F6 and its relatives, and files that change under us."""

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from certs.files import SuppliedFiles
from certs.pki import KeyPair, PkiError, pem
from certs.source import Offer
from certs.supplied import Files, Supplied, judged
from tests.unit.certs import made
from tests.unit.certs.made import DAY, NOW, YEAR

HOST = "tenure.tenure-system.svc"
CA = made.ca("In use")
IN_USE = made.leaf(CA, HOST, end=NOW + 30 * DAY)


def files(pair: KeyPair, *authorities: KeyPair, **others: bytes) -> Files:
    roots = pem(*(authority.certificate for authority in authorities))
    return {"tls.crt": pair.certificate_pem, "tls.key": pair.key_pem, "ca.crt": roots, **others}


def supplied(pair: KeyPair, *authorities: KeyPair) -> Supplied:
    return Supplied.parse(files(pair, *authorities))


def judge(found: Files, used: Supplied | None = None, now: datetime = NOW) -> Supplied:
    return judged(found, used, clients=False, now=now)


class TestACaFromTheFuture:
    """F6. The CA opens after `ahead`; the leaf that came with it holds already."""

    @staticmethod
    def coming(ahead: timedelta) -> Files:
        ca = made.ca("Coming", begin=NOW + ahead, end=NOW + YEAR)
        return files(made.leaf(ca, HOST), ca)

    def test_is_refused_with_the_time_left_while_the_old_chain_holds(self) -> None:
        with pytest.raises(PkiError, match=r"^its time has not come: valid in 3 h$"):
            judge(self.coming(timedelta(hours=3)), supplied(IN_USE, CA))
        with pytest.raises(PkiError, match=r"valid in 2 h 59 min$"):
            judge(self.coming(timedelta(hours=3)), None, now=NOW + timedelta(seconds=30))

    def test_is_used_when_its_time_has_come(self) -> None:
        found = self.coming(timedelta(hours=3))
        used = judge(found, supplied(IN_USE, CA), now=NOW + timedelta(hours=3))
        assert used.pair.certificate_pem == found["tls.crt"]

    def test_may_be_a_few_minutes_early_when_there_is_nothing_better(self) -> None:
        found = self.coming(timedelta(minutes=2))
        assert judge(found).fault(NOW) is not None
        over = supplied(made.leaf(CA, HOST, begin=NOW - 2 * DAY, end=NOW - DAY), CA)
        assert judge(found, over).pair.certificate_pem == found["tls.crt"]

    def test_waits_also_for_minutes_while_the_old_chain_holds(self) -> None:
        with pytest.raises(PkiError, match=r"valid in 2 min$"):
            judge(self.coming(timedelta(minutes=2)), supplied(IN_USE, CA))

    def test_beside_the_old_ca_is_offered_for_the_ca_bundle_only_shortly_before_its_time(self) -> None:
        coming = made.ca("Coming", begin=NOW + timedelta(hours=3))
        both = judge(files(IN_USE, CA, coming))
        assert both.offer(NOW).trusted == (CA.certificate,)
        assert both.offer(NOW + timedelta(hours=2, minutes=55)).trusted == both.authorities
        assert both.offer(NOW + timedelta(hours=3)).roots == both.authorities

    def test_an_expired_one_is_not_offered(self) -> None:
        gone = made.ca("Gone", begin=NOW - 2 * DAY, end=NOW - DAY)
        assert judge(files(IN_USE, CA, gone)).offer(NOW).trusted == (CA.certificate,)


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ({}, "tls.crt and tls.key: there is no certificate"),
        ({"tls.crt": IN_USE.certificate_pem}, "tls.crt and tls.key: there is no key"),
        (files(KeyPair(IN_USE.certificate, CA.key), CA), "does not belong to the certificate"),
        (files(IN_USE, made.ca("In use")), "no trusted CA leads to the certificate"),
        ({**files(IN_USE), "ca.crt": b"junk"}, "ca.crt or client-ca.crt: the text holds no certificate"),
        (files(made.leaf(CA, HOST, begin=NOW - 2 * DAY, end=NOW - DAY), CA), "expired 1 d ago"),
        (files(made.leaf(made.ca(begin=NOW - YEAR, end=NOW - DAY), HOST)), ""),
    ],
)
def test_what_no_client_would_trust_is_refused(found: Files, reason: str) -> None:
    if not reason:
        assert judge(found).fault(NOW) is None, "without ca.crt nobody can know better"
        return
    with pytest.raises(PkiError, match=reason):
        judge(found)


class Folder:
    """A mounted Secret: files behind a symbolic link that kubelet swaps."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now = NOW
        self.source = SuppliedFiles(path, clients=False, now=lambda: self.now)
        self._version = 0

    def mount(self, found: Files) -> None:
        self._version += 1
        data = self.path / f"..{self._version}"
        data.mkdir()
        for name, text in found.items():
            (data / name).write_bytes(text)
            if not (self.path / name).is_symlink():
                (self.path / name).symlink_to(f"..data/{name}")
        link = self.path / "..tmp"
        link.symlink_to(data.name)
        link.rename(self.path / "..data")

    async def offer(self) -> Offer:
        return await self.source.offer()


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


async def test_files_are_taken_up_when_they_change_and_only_then(folder: Folder) -> None:
    folder.mount(files(IN_USE, CA))
    first = await folder.offer()
    assert (await folder.offer()).pair is first.pair
    renewed = made.leaf(CA, HOST, end=NOW + 60 * DAY)
    folder.mount(files(renewed, CA))
    assert (await folder.offer()).pair.certificate == renewed.certificate


async def test_files_that_are_no_good_leave_the_former_ones_in_use(folder: Folder) -> None:
    folder.mount(files(IN_USE, CA))
    first = await folder.offer()
    for found in (
        {},
        files(KeyPair(IN_USE.certificate, CA.key), CA),
        {**files(IN_USE), "tls.key": b"half a k"},
    ):
        folder.mount({"tls.crt": b"", **found})
        kept = await folder.offer()
        assert kept.pair is first.pair
        assert kept.refused is not None
    folder.mount(files(IN_USE, CA))
    assert (await folder.offer()).refused is None


async def test_a_ca_from_the_future_is_taken_up_at_its_time_without_a_restart(folder: Folder) -> None:
    folder.mount(files(IN_USE, CA))
    first = await folder.offer()
    coming = made.ca("Coming", begin=NOW + timedelta(hours=3))
    folder.mount(files(made.leaf(coming, HOST), coming))
    waiting = await folder.offer()
    assert waiting.pair is first.pair
    assert waiting.trusted == (CA.certificate,)
    assert str(waiting.refused).endswith("its time has not come: valid in 3 h")
    folder.now = NOW + timedelta(hours=3)
    assert (await folder.offer()).trusted == (coming.certificate,)


async def test_an_empty_folder_is_said_by_its_name(folder: Folder) -> None:
    with pytest.raises(PkiError, match=f"^{folder.path}: tls.crt and tls.key: there is no certificate$"):
        await folder.offer()


async def test_a_ca_for_clients_is_demanded_where_the_extender_can_be_reached(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.source = SuppliedFiles(tmp_path, clients=True, now=lambda: NOW)
    folder.mount(files(IN_USE, CA))
    with pytest.raises(
        PkiError, match=r"client-ca\.crt is missing, and the extender listens beyond loopback"
    ):
        await folder.offer()
    folder.mount(files(IN_USE, CA, **{"client-ca.crt": made.ca("Clients").certificate_pem}))
    assert len((await folder.offer()).clients) == 1
