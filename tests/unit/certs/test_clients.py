"""Which client certificate in a Secret is kept, and why another one is replaced."""

from datetime import timedelta

import pytest

from certs import pki
from certs.clients import adopted
from certs.pki import KeyPair, PkiError, Usage
from certs.rollover import Authorities
from tests.unit.certs.made import DAY, NOW, YEAR

CA, NEXT = (pki.make_ca(lifetime=YEAR, now=NOW) for _ in range(2))
LIFETIME = 6 * DAY


def client(ca: KeyPair = CA, usage: Usage = Usage.CLIENT) -> KeyPair:
    return pki.make_leaf(ca, names=["tenure-scheduler"], lifetime=LIFETIME, now=NOW, usage=usage)


def data(pair: KeyPair, *authorities: KeyPair) -> dict[str, bytes]:
    roots = pki.pem(*(each.certificate for each in authorities or [CA]))
    return {"tls.crt": pair.certificate_pem, "tls.key": pair.key_pem, "ca.crt": roots}


def test_a_good_one_is_kept_until_two_thirds_of_its_life_are_over() -> None:
    pair = client()
    assert adopted(data(pair), Authorities(CA), NOW + timedelta(days=3.9)).certificate == pair.certificate
    with pytest.raises(PkiError, match="two thirds"):
        adopted(data(pair), Authorities(CA), NOW + timedelta(days=4))


@pytest.mark.parametrize(
    ("held", "authorities", "reason"),
    [
        ({}, Authorities(CA), "there is no certificate"),
        (data(KeyPair(client().certificate, CA.key)), Authorities(CA), "does not belong"),
        (data(client(NEXT)), Authorities(CA), "the CA is another one now"),
        (data(client(usage=Usage.SERVER)), Authorities(CA), "the certificate is not for clients"),
        (data(client()), Authorities(CA, NEXT), "the CAs are others now"),
    ],
)
def test_one_that_the_extender_or_the_scheduler_could_not_use_is_replaced(
    held: dict[str, bytes], authorities: Authorities, reason: str
) -> None:
    with pytest.raises(PkiError, match=reason):
        adopted(held, authorities, NOW)
