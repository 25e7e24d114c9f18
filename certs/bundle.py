"""The caBundle of a webhook: CA certificates of several owners in one text, merged and never replaced.

After cert-manager (internal/cainjector/bundle), with one more rule: what is dropped is said.
"""

import re
from base64 import b64decode
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from cryptography import x509

from certs import pki, reading

# A frame begins and ends on lines of its own; elsewhere in a line Go (encoding/pem) does not see it either.
_FRAME: Final = re.compile(
    rb"^-----BEGIN (?P<label>[A-Z0-9 ]+)-----[ \t\r]*\n(?P<body>.*?)^-----END (?P=label)-----[ \t\r]*$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Bundle:
    """What is in a text: certificates in their order without repetitions, and a word on each part that is none."""

    certificates: tuple[x509.Certificate, ...]
    unreadable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Merge:
    """The new text (equal to the old one when nothing had to change), and what was left out of it and why."""

    pem: bytes
    dropped: tuple[str, ...] = ()


def read(text: bytes) -> Bundle:
    """Read a bundle that anybody may have written."""
    found: dict[x509.Certificate, None] = {}
    unreadable = []
    for number, frame in enumerate(_FRAME.finditer(text), start=1):
        certificate = _certificate(frame)
        if certificate is None:
            unreadable.append(f"part {number} is no readable certificate")
        else:
            found[certificate] = None
    if not found and not unreadable and text.strip():
        unreadable.append("the text holds no certificate")
    return Bundle(tuple(found), tuple(unreadable))


def merge(
    text: bytes,
    ours: Collection[x509.Certificate],
    *,
    now: datetime,
    retired: Callable[[x509.Certificate], bool] = lambda _: False,
) -> Merge:
    """Add `ours`; drop what has expired, what nobody can read, and what is retired. Other people's valid CAs stay."""
    old = read(text)
    kept, dropped = [], list(old.unreadable)
    for certificate in old.certificates:
        if now >= certificate.not_valid_after_utc:
            dropped.append(f"{reading.described(certificate)} {reading.outside_validity(certificate, now)}")
        elif certificate not in ours and retired(certificate):
            dropped.append(f"{reading.described(certificate)} is retired")
        else:
            kept.append(certificate)  # One from the future stays too: its owner counts on it.
    missing = [certificate for certificate in dict.fromkeys(ours) if certificate not in kept]
    unchanged = not dropped and not missing
    return Merge(text if unchanged else pki.pem(*kept, *missing), tuple(dropped))


def _certificate(frame: re.Match[bytes]) -> x509.Certificate | None:
    if frame["label"] != b"CERTIFICATE":
        return None
    try:
        certificate = x509.load_der_x509_certificate(
            b64decode(b"".join(frame["body"].split()), validate=True)
        )
        reading.renew_at(certificate)  # The library reads times only when asked, and may then refuse them.
    except reading.UNREADABLE:
        return None
    return certificate
