"""Servers, agents and hooks as the chart runs them."""

import shutil
from functools import cache
from pathlib import Path

import pytest

from service import names
from service.settings import Settings
from tests.chart.values import CHART
from tests.unit.chart import rendered
from tests.unit.chart.rendered import CI, Json, one, render
from webhook.admission.claims import ClaimPolicy

pytestmark = pytest.mark.cluster  # Helm is one of the lab's programs.


@cache
def chart() -> list[Json]:
    return render()


def server(objects: list[Json]) -> Json:
    spec: Json = one(objects, "Deployment", "tenure-server")["spec"]
    return spec


def agent(objects: list[Json]) -> Json:
    (found,) = one(objects, "DaemonSet", "tenure-node")["spec"]["template"]["spec"]["containers"]
    return dict(found)


@pytest.mark.parametrize("values", CI, ids=lambda path: path.stem)
def test_every_value_set_passes_helm_lint(values: Path) -> None:
    done = rendered.helm(
        "lint", str(CHART), "--strict", f"--namespace={rendered.NAMESPACE}", f"--values={values}"
    )
    assert done.returncode == 0, done.stdout


def test_a_rolling_update_of_the_servers_leaves_no_gap() -> None:
    spec = server(chart())
    assert spec["replicas"] == 2
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    budget = one(chart(), "PodDisruptionBudget", "tenure-server")["spec"]
    assert (budget["maxUnavailable"], budget["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")
    assert budget["selector"] == spec["selector"]


def test_a_change_of_the_configuration_rolls_the_pods() -> None:
    changed = render("--set=settings.log.level=debug")
    for kind, name in (("Deployment", "tenure-server"), ("DaemonSet", "tenure-node")):
        notes = [
            one(objects, kind, name)["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
            for objects in (chart(), changed)
        ]
        assert notes[0] != notes[1]


@pytest.mark.parametrize(("value", "env"), [("true", "1"), ("false", "0")])
def test_host_pid_and_occupancy_are_rendered_as_the_field_knows_them(value: str, env: str) -> None:
    objects = render(f"--set=hostPID={value},occupancy={value}")
    spec = one(objects, "DaemonSet", "tenure-node")["spec"]["template"]["spec"]
    assert spec["hostPID"] is (value == "true")
    assert {"name": "AIRM_OCCUPANCY", "value": env} in agent(objects)["env"]


def test_agents_are_privileged_only_where_they_mount_for_others() -> None:
    assert agent(chart())["securityContext"]["privileged"] is True
    without = agent(render("--set=regions.backend=off"))
    assert without["securityContext"]["capabilities"] == {
        "drop": ["ALL"],
        "add": ["SYS_PTRACE", "DAC_READ_SEARCH"],
    }
    assert "privileged" not in without["securityContext"]
    assert all("mountPropagation" not in mount for mount in without["volumeMounts"])


def test_region_root_and_kubelet_s_folders_are_mounted_where_the_node_has_them_and_both_ways() -> None:
    objects = render("--set=regions.kubeletRoot=/var/lib/k0s/kubelet,regions.root=/srv/vgpu")
    shared = [m for m in agent(objects)["volumeMounts"] if m.get("mountPropagation") == "Bidirectional"]
    assert sorted(mount["mountPath"] for mount in shared) == ["/srv/vgpu", "/var/lib/k0s/kubelet/pods"]
    sockets = {mount["mountPath"] for mount in agent(objects)["volumeMounts"] if mount not in shared}
    assert {
        f"/var/lib/k0s/kubelet/plugins/{names.CSI_DRIVER}",
        "/var/lib/k0s/kubelet/plugins_registry",
    } < sockets


def test_no_pod_of_ours_is_taken_over_by_a_mesh() -> None:
    for pod in rendered.pod_templates(chart()):
        assert pod["metadata"]["labels"]["sidecar.istio.io/inject"] == "false"
        assert pod["metadata"]["labels"]["istio.io/dataplane-mode"] == "none"
        assert pod["metadata"]["annotations"]["linkerd.io/inject"] == "disabled"
        assert pod["spec"]["enableServiceLinks"] is False


def test_every_root_file_system_is_read_only() -> None:
    for pod in rendered.pod_templates(chart()):
        for container in pod["spec"]["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_no_ca_bundle_is_rendered_and_webhooks_keep_their_names() -> None:
    """An upgrade would reset the one, and give up the apply of the others (NVIDIA/nodewright 163)."""
    for given in ("webhook.failurePolicy=Fail", "certificates.mode=certManager", "pool.enabled=false"):
        (hook,) = one(render(f"--set={given}"), "MutatingWebhookConfiguration", "tenure")["webhooks"]
        assert "caBundle" not in hook["clientConfig"]
        assert hook["name"] == "pods.tenure.dev"


def test_with_the_node_s_network_the_extender_demands_a_certificate() -> None:
    objects = render("--set=server.hostNetwork=true")
    own = rendered.settings(objects)
    assert Settings.model_validate(own).http.extender_beyond_loopback
    (extender,) = rendered.scheduler(objects)["extenders"]
    assert extender["urlPrefix"].startswith("https://")
    assert extender["tlsConfig"]["serverName"] == "tenure-webhook.tenure-system.svc"
    assert own["certs"]["client_secret"] in rendered.named(objects, "Secret")
    volumes = server(objects)["template"]["spec"]["volumes"]
    assert {"name": "scheduler-tls", "secret": {"secretName": own["certs"]["client_secret"]}} in volumes


def test_the_scheduler_has_the_cluster_s_version_without_a_vendor_s_suffix() -> None:
    for version in ("v1.34.2-gke.100", "v1.34.2+k3s1", "v1.34.2"):
        images = [
            c["image"] for c in server(render(f"--kube-version={version}"))["template"]["spec"]["containers"]
        ]
        assert images == ["tenure:0.1.0", "registry.k8s.io/kube-scheduler:v1.34.2"]


def test_without_a_pool_or_with_a_scheduler_of_one_s_own_none_runs_beside_the_server() -> None:
    for given in ("pool.enabled=false", "scheduler.enabled=false"):
        objects = render(f"--set={given}")
        assert [c["name"] for c in server(objects)["template"]["spec"]["containers"]] == ["tenure"]
        assert "tenure-kube-scheduler" not in rendered.named(objects, "ClusterRoleBinding")


def test_a_scheduler_elsewhere_finds_the_extender_behind_a_service_and_with_certificates_only() -> None:
    objects = render(f"--values={CHART / 'ci' / 'own-names-values.yaml'}")
    own = Settings.model_validate(rendered.settings(objects))
    assert own.http.extender_beyond_loopback
    assert own.certs.client_secret in rendered.named(objects, "Secret")
    (port,) = one(objects, "Service", "tenure-extender")["spec"]["ports"]
    assert port["port"] == own.http.extender_port
    assert "tenure-extender" not in rendered.named(chart(), "Service")


@pytest.mark.parametrize(
    ("given", "by_claim", "resources"),
    [
        ("devices.npu.mode=dra", True, {}),
        (
            "devices.npu.mode=devicePlugin,devices.rdma.mode=devicePlugin",
            False,
            {"rebellions.ai/npu": 4, "rdma/hca": 2},
        ),
        ("devices.rdma.mode=devicePlugin", True, {"rdma/hca": 2}),
        ("devices.rdma.enabled=false,devices.claimTemplateName=npu-only", True, {}),
        # Nothing is left that a claim would be for.
        ("devices.npu.mode=devicePlugin,devices.rdma.enabled=false", False, {"rebellions.ai/npu": 4}),
    ],
)
def test_devices_reach_admission_as_they_were_meant(*, given: str, by_claim: bool, resources: Json) -> None:
    own = Settings.model_validate(rendered.settings(render(f"--set={given}")))
    policy = ClaimPolicy.of(own.devices)
    assert (policy.by_claim, policy.resources) == (by_claim, resources)


def test_alerts_and_dashboards_are_taken_from_files_and_may_be_missing(tmp_path: Path) -> None:
    copy = tmp_path / "tenure"
    shutil.copytree(CHART, copy, ignore=shutil.ignore_patterns("alerts.yaml", "dashboards"))
    on = "--set=metrics.prometheusRule.enabled=true,metrics.dashboards.enabled=true"
    without = render(on, chart=copy)
    assert rendered.named(without, "PrometheusRule") == []
    rule = 'groups:\n  - name: a\n    rules:\n      - {alert: A, expr: up, annotations: {summary: "{{ $value }}"}}\n'
    (copy / "files" / "alerts.yaml").write_text(rule)
    (copy / "files" / "dashboards").mkdir()
    (copy / "files" / "dashboards" / "pool.json").write_text('{"title": "{{node}}"}')
    objects = render(on, chart=copy)
    (group,) = one(objects, "PrometheusRule", "tenure")["spec"]["groups"]
    assert group["rules"][0]["annotations"]["summary"] == "{{ $value }}"
    board = one(objects, "ConfigMap", "tenure-dashboard-pool")
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert board["data"]["pool.json"].strip() == '{"title": "{{node}}"}'


def test_an_uninstall_looks_first_and_cleans_last() -> None:
    check, clean = (one(chart(), "Job", f"tenure-uninstall-{word}") for word in ("check", "clean"))
    assert check["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"
    assert clean["metadata"]["annotations"]["helm.sh/hook"] == "post-delete"
    warned = one(render("--set=uninstall.blockers=warn"), "Job", "tenure-uninstall-check")
    (container,) = warned["spec"]["template"]["spec"]["containers"]
    assert container["args"][-1] == "--warn-only"
    assert not [o for o in render("--set=uninstall.hooks=false") if o["kind"] == "Job"]
