"""What each webhook calls and whom it trusts."""

from base64 import b64encode
from typing import Any

import msgspec
import pytest

from certs import bundle, registration
from certs.pki import pem
from certs.registration import ClientConfig, Registration
from tests.unit.certs import made
from tests.unit.certs.made import NOW

OURS = made.ca("Ours")
OTHER = made.ca("Other")


def configuration(*bundles: bytes | None) -> Registration:
    webhooks = [
        {
            "name": f"w{number}.tenure.dev",
            "clientConfig": {
                "service": {"name": "tenure", "namespace": "tenure-system", "path": "/admission/pods"},
                **({"caBundle": b64encode(text).decode()} if text is not None else {}),
            },
            "sideEffects": "None",
        }
        for number, text in enumerate(bundles)
    ]
    body: dict[str, Any] = {"metadata": {"name": "tenure", "resourceVersion": "7"}, "webhooks": webhooks}
    return registration.decode(msgspec.json.encode(body))


def injection(found: Registration) -> registration.Injection | None:
    return registration.injection(found, [OURS.certificate], now=NOW, retired=lambda _: False)


@pytest.mark.parametrize(
    ("config", "host"),
    [
        ({"service": {"name": "tenure", "namespace": "tenure-system"}}, "tenure.tenure-system.svc"),
        ({"url": "https://127.0.0.1:9443/admission/pods"}, "127.0.0.1"),
        ({"url": "https://[fd00::1]:9443/admission/pods"}, "fd00::1"),
        ({"url": "https://tenure.example.org/admission/pods"}, "tenure.example.org"),
        ({}, ""),
    ],
)
def test_the_name_that_the_api_server_verifies_is_known(config: dict[str, Any], host: str) -> None:
    assert msgspec.convert(config, ClientConfig).host == host


def test_an_apply_names_every_webhook_also_those_that_stay_as_they_are() -> None:
    complete = pem(OTHER.certificate, OURS.certificate)
    change = injection(configuration(None, complete, b"junk"))
    assert change is not None
    assert change.body["metadata"] == {"name": "tenure", "resourceVersion": "7"}
    assert [webhook["name"] for webhook in change.body["webhooks"]] == [
        "w0.tenure.dev",
        "w1.tenure.dev",
        "w2.tenure.dev",
    ]
    assert [set(webhook) for webhook in change.body["webhooks"]] == [{"name", "clientConfig"}] * 3
    assert change.body["webhooks"][1]["clientConfig"] == {"caBundle": complete}
    assert change.dropped == {"w2.tenure.dev": ("the text holds no certificate",)}


def test_nothing_is_applied_when_every_webhook_trusts_us_already() -> None:
    assert injection(configuration(pem(OURS.certificate), pem(OTHER.certificate, OURS.certificate))) is None
    assert injection(configuration()) is None


def test_each_webhook_has_its_own_reason_to_distrust() -> None:
    leaf = made.leaf(OURS, "tenure.tenure-system.svc")
    good, bad = registration.entries(configuration(pem(OURS.certificate), pem(OTHER.certificate)))
    assert good.distrust(leaf, now=NOW) is None
    assert str(bad.distrust(leaf, now=NOW)).startswith("webhook w1.tenure.dev: no trusted CA")
    assert good.distrust(leaf, now=NOW, among=lambda _: False) == (
        "webhook w0.tenure.dev: there is no CA to trust"
    )
    assert bundle.read(pem(*bad.roots)).certificates == (OTHER.certificate,)
