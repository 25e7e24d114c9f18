"""Names, ports and limits stand in the code once; the chart must have the same ones."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from service import lifecycle, names
from service.settings import CertSettings, HttpSettings, KubeSettings, LeaseSettings, Settings, load
from tests.unit.chart import rendered
from tests.unit.chart.rendered import CI, Json, one, render

pytestmark = pytest.mark.cluster  # Helm is one of the lab's programs.


@cache
def chart() -> list[Json]:
    return render()


@pytest.mark.parametrize("values", CI, ids=lambda path: path.stem)
def test_the_program_takes_the_configuration_of_every_value_set(values: Path, tmp_path: Path) -> None:
    objects = render(f"--values={values}")
    file = tmp_path / "tenure.yaml"
    file.write_text(one(objects, "ConfigMap", "tenure")["data"]["tenure.yaml"])
    assert load(file).kube.namespace == rendered.NAMESPACE


def test_what_the_chart_writes_out_by_default_is_the_program_s_default() -> None:
    """But for where the host's folders are mounted, and the claim template that the chart's examples have."""
    own, program = rendered.settings(chart()), Settings().model_dump(mode="json")
    own["occupancy"].pop("dev"), own["occupancy"].pop("sys")
    assert own["devices"].pop("claim_template_name") == "npu-rdma"
    assert _part_of(program, own) == own


def _part_of(whole: Any, part: Any) -> Any:
    if not isinstance(part, dict):
        return whole
    return {key: _part_of(whole[key], value) for key, value in part.items()}


def test_the_scheduler_asks_our_extender_about_our_resources_only() -> None:
    config = rendered.scheduler(chart())
    assert [profile["schedulerName"] for profile in config["profiles"]] == [names.SCHEDULER_NAME]
    (extender,) = config["extenders"]
    assert extender["urlPrefix"] == f"http://127.0.0.1:{HttpSettings().extender_port}/scheduler"
    verbs = [extender[f"{verb}Verb"] for verb in ("filter", "preempt", "bind")]
    assert verbs == ["filter", "preempt", "bind"]
    assert (extender["nodeCacheCapable"], extender["ignorable"]) == (True, False)
    assert extender["managedResources"] == [
        {"name": name, "ignoredByScheduler": True} for name in (names.REMOTE_GPU, names.REMOTE_GPU_MEMORY)
    ]


def test_resource_names_are_set_once_for_program_webhook_and_scheduler() -> None:
    objects = render("--set=pool.resources.count=x.io/card,pool.resources.memory=x.io/mib")
    pool = rendered.settings(objects)["pool"]
    assert (pool["resource_count_name"], pool["resource_memory_name"]) == ("x.io/card", "x.io/mib")
    (extender,) = rendered.scheduler(objects)["extenders"]
    assert [found["name"] for found in extender["managedResources"]] == ["x.io/card", "x.io/mib"]
    (condition,) = one(objects, "MutatingWebhookConfiguration", "tenure")["webhooks"][0]["matchConditions"]
    assert '"x.io/card","x.io/mib"' in condition["expression"]
    assert f'"{names.REMOTE_GPU}"' not in condition["expression"]


def test_services_are_those_that_certificates_and_commands_name() -> None:
    webhook = one(chart(), "Service", CertSettings().service)
    assert webhook["spec"]["ports"] == [{"name": "admission", "port": 443, "targetPort": "admission"}]
    name, port = KubeSettings().ops_service.split(":")
    assert [found["name"] for found in one(chart(), "Service", name)["spec"]["ports"]] == [port]
    (hook,) = one(chart(), "MutatingWebhookConfiguration", "tenure")["webhooks"]
    assert hook["clientConfig"]["service"]["name"] == CertSettings().service


def test_kubelet_is_more_patient_than_the_program_takes_to_end() -> None:
    for given, drain in (("", HttpSettings().drain_s), ("--set=settings.http.drain_s=40", 40)):
        spec = one(render(*filter(None, [given])), "Deployment", "tenure-server")["spec"]["template"]["spec"]
        assert spec["terminationGracePeriodSeconds"] >= drain + lifecycle.STOP_S + 10


def test_the_driver_is_the_one_that_the_webhook_injects() -> None:
    spec = one(chart(), "CSIDriver", names.CSI_DRIVER)["spec"]
    assert (spec["volumeLifecycleModes"], spec["podInfoOnMount"]) == (["Ephemeral"], True)


def test_what_the_program_makes_in_its_namespace_goes_with_the_release() -> None:
    assert CertSettings().secret_name in rendered.named(chart(), "Secret")
    assert LeaseSettings().name in rendered.named(chart(), "Lease")
    assert "data" not in one(chart(), "Secret", CertSettings().secret_name)
    assert "spec" not in one(chart(), "Lease", LeaseSettings().name)


def test_only_the_server_s_account_writes_decision_keys() -> None:
    policy = one(chart(), "ValidatingAdmissionPolicy", "tenure-decision-keys")
    (condition,) = policy["spec"]["matchConditions"]
    account = f"system:serviceaccount:{rendered.NAMESPACE}:tenure-server"
    assert condition["expression"].strip() == f'!(request.userInfo.username in ["{account}"])'
    assert rendered.settings(chart())["webhook"]["decision_accounts"] == [account]
    accounts = {pod["spec"]["serviceAccountName"] for pod in rendered.pod_templates(chart())}
    assert accounts == {"tenure-server", "tenure-node", "tenure-cleaner", "tenure-test"}


def test_further_decision_accounts_reach_policy_and_program_alike() -> None:
    objects = render("--set=webhook.decisionAccounts={hami}")
    own = f"system:serviceaccount:{rendered.NAMESPACE}:tenure-server"
    assert rendered.settings(objects)["webhook"]["decision_accounts"] == [own, "hami"]
    for name in ("tenure-decision-keys", "tenure-gate"):
        (condition,) = one(objects, "ValidatingAdmissionPolicy", name)["spec"]["matchConditions"]
        assert f'["{own}","hami"]' in condition["expression"]
