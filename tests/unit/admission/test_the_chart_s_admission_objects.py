"""What the chart says about admission must be what the code says."""

from typing import Any

import pytest

from service import names
from service.settings import PoolSettings, RegionSettings, Settings
from tests.cluster import admission_manifests as manifests

RULE = [f"'{key}'" for key in (*names.DECISION_KEYS, names.ALLOCATION_PREFIX)]


def expressions(found: dict[str, Any]) -> list[str]:
    return [rule["expression"] for rule in found["spec"]["validations"]]


def test_the_policy_names_exactly_the_decision_keys_of_the_code() -> None:
    keys, _, gate, _ = manifests.guard(["a"])
    assert len(expressions(keys)) == 4
    for expression in expressions(keys):
        assert all(key in expression for key in RULE)
    assert all(f"'{names.GATE}'" in expression for expression in expressions(gate))


def test_the_guard_fails_closed_denies_and_takes_no_parameters() -> None:
    for policy, binding in (manifests.guard(["a"])[:2], manifests.guard(["a"])[2:]):
        assert policy["spec"]["failurePolicy"] == "Fail"
        assert "paramKind" not in policy["spec"]
        assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}


def test_a_quoted_account_stays_one_account() -> None:
    policy = manifests.guard(['a"] || true || ["', "b"])[0]
    assert r'"a\"] || true || [\""' in policy["spec"]["matchConditions"][0]["expression"]


@pytest.mark.parametrize("part", [*RULE, names.GATE, names.REGIONS, names.CLAIM_TEMPLATE])
def test_the_match_condition_lets_in_what_the_webhook_acts_on(part: str) -> None:
    (condition,) = manifests.webhook({"url": "u"})["webhooks"][0]["matchConditions"]
    assert part in condition["expression"]


def test_the_match_condition_follows_the_resource_names_of_the_settings() -> None:
    settings = Settings(
        pool=PoolSettings(resource_count_name="x.io/card", resource_memory_name="x.io/mib"),
        regions=RegionSettings(resources=("x.io/share",)),
    )
    (condition,) = manifests.webhook({"url": "u"}, settings)["webhooks"][0]["matchConditions"]
    assert condition["expression"].count('["x.io/card","x.io/mib","x.io/share"]') == 2
    assert f'"{names.REMOTE_GPU}"' not in condition["expression"]


def test_nothing_that_a_tenant_controls_opts_out_of_the_webhook() -> None:
    hook = manifests.webhook({"url": "u"})["webhooks"][0]
    assert "objectSelector" not in hook
    keys = [rule["key"] for rule in hook["namespaceSelector"]["matchExpressions"]]
    assert keys == ["kubernetes.io/metadata.name"]
    assert (hook["sideEffects"], hook["reinvocationPolicy"]) == ("None", "IfNeeded")
