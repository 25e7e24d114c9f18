"""Every kind of cgroup path that people reported, and whose process it is."""

import pytest

from controllers.occupancy.cgroups import Managed, Placement, classify

H64 = "0123456789abcdef" * 4
H64B = "fedcba9876543210" * 4
U = "0f3b1c2d-4e5f-4071-8293-a4b5c6d7e8f9"
U_ = U.replace("-", "_")
HASH = "4d1f60b2a6c0fdb7c1f2e3d4c5b6a798"
ROOT = "0::/"
POD = Placement(Managed.K8S, U, H64)
HOST = Placement(Managed.HOST)

K8S_PATHS = {
    "systemd driver, containerd": (
        f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{U_}.slice/cri-containerd-{H64}.scope"
    ),
    "systemd driver, guaranteed": f"/kubepods.slice/kubepods-pod{U_}.slice/cri-containerd-{H64}.scope",
    "CRI-O": f"/kubepods.slice/kubepods-pod{U_}.slice/crio-{H64}.scope",
    "CRI-O with a container folder": f"/kubepods.slice/kubepods-pod{U_}.slice/crio-{H64}.scope/container",
    "cri-dockerd": f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{U_}.slice/docker-{H64}.scope",
    "cgroupfs driver": f"/kubepods/burstable/pod{U}/{H64}",
    "cgroupfs driver, guaranteed": f"/kubepods/pod{U}/{H64}",
    "driver mismatch": f"/system.slice/containerd.service/kubepods-besteffort-pod{U_}.slice:cri-containerd:{H64}",
    "driver mismatch at the root": f"/kubepods-besteffort-pod{U_}.slice:cri-containerd:{H64}",
    "kind, inside the node": (
        "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice"
        f"/kubelet-kubepods-besteffort-pod{U_}.slice/cri-containerd-{H64}.scope"
    ),
    "kind, from the real host": (
        f"/system.slice/docker-{H64B}.scope/kubelet.slice/kubelet-kubepods.slice"
        f"/kubelet-kubepods-pod{U_}.slice/cri-containerd-{H64}.scope"
    ),
    "doubled root": f"/kubepods/kubepods/besteffort/pod{U}/{H64}",
    "nested init scope": f"/kubepods/burstable/pod{U}/{H64}/init.scope",
    "LXC inside the pod": f"/kubepods/burstable/pod{U}/{H64}/lxc.payload.web/init.scope",
    "docker inside the pod": (
        f"/kubepods.slice/kubepods-pod{U_}.slice/cri-containerd-{H64}.scope/docker/{H64B}"
    ),
    "removed while the process lives": f"/kubepods/burstable/pod{U}/{H64} (deleted)",
}

HOST_PATHS = {
    "ssh login": "/user.slice/user-1001.slice/session-4.scope",
    "service": "/system.slice/train.service",
    "docker": f"/system.slice/docker-{H64}.scope",
    "podman": f"/machine.slice/libpod-{H64}.scope",
    "podman of a user": (
        f"/user.slice/user-1001.slice/user@1001.service/user.slice/libpod-{H64}.scope/container"
    ),
    "slurm": "/system.slice/slurmstepd.scope/job_117/step_0/user/task_0",
    "LXC monitor": "/lxc.monitor/build",
    "image builder": "/docker/buildkit/k3x9m2p7q1w8e5r4t6y0u2i9o",
    "the root itself": "/",
}


@pytest.mark.parametrize("path", K8S_PATHS.values(), ids=K8S_PATHS)
def test_a_pod_path_names_the_pod_and_its_container(path: str) -> None:
    assert classify(f"0::{path}\n", root=ROOT) == POD


@pytest.mark.parametrize("path", HOST_PATHS.values(), ids=HOST_PATHS)
def test_a_path_without_a_pod_is_the_host(path: str) -> None:
    assert classify(f"0::{path}\n", root=ROOT) == HOST


def test_a_static_pod_is_known_by_the_hash_of_its_manifest() -> None:
    text = f"0::/kubepods.slice/kubepods-pod{HASH}.slice/cri-containerd-{H64}.scope"
    assert classify(text, root=ROOT) == Placement(Managed.K8S, HASH, H64)


def test_a_container_monitor_of_crio_is_in_the_pod_but_no_container() -> None:
    text = f"0::/kubepods.slice/kubepods-pod{U_}.slice/crio-conmon-{H64}.scope"
    assert classify(text, root=ROOT) == Placement(Managed.K8S, U)


def test_version_1_lines_are_read_when_version_2_says_only_the_root() -> None:
    text = f"9:name=systemd:/\n8:pids:/kubepods/besteffort/pod{U}/{H64}\n4:memory:/other\n0::/\n"
    root = "9:name=systemd:/\n8:pids:/\n4:memory:/\n0::/\n"
    assert classify(text, root=root) == POD


def test_lines_of_one_version_1_container_may_differ() -> None:
    text = "11:cpuset:/lxc.payload/build\n2:memory:/lxc.payload/build/init.scope\n0::/lxc.payload/build/init.scope"
    assert classify(text, root="11:cpuset:/\n2:memory:/\n0::/") == HOST


def test_version_2_wins_over_version_1_when_it_says_more() -> None:
    text = f"1:name=systemd:/user.slice/user-1.slice\n0::/kubepods/pod{U}/{H64}"
    assert classify(text, root="1:name=systemd:/\n0::/") == POD


class TestAReaderInAPrivateCgroupNamespace:
    """Findings 1 and 2: what an agent pod without the host's cgroup namespace reads."""

    root = "0::/../../../.."

    def test_another_pod_is_kubernetes_although_kubepods_is_cut_away(self) -> None:
        assert classify(f"0::/../../pod{U}/{H64}", root=self.root) == POD

    def test_a_path_that_reaches_the_root_without_a_pod_is_the_host(self) -> None:
        assert classify("0::/../../../../user.slice/user-1.slice", root=self.root) == HOST

    def test_process_one_in_its_own_root_is_unknown_and_not_the_host(self) -> None:
        assert classify("0::/", root=self.root).managed is Managed.UNKNOWN

    def test_a_path_that_stops_half_way_is_unknown_and_not_the_host(self) -> None:
        assert classify("0::/../../besteffort", root=self.root).managed is Managed.UNKNOWN

    @pytest.mark.parametrize("scope", [f"cri-containerd-{H64}.scope", f"crio-{H64}.scope"])
    def test_a_sibling_in_the_same_pod_shows_its_container_only(self, scope: str) -> None:
        assert classify(f"0::/../{scope}", root=self.root) == Placement(Managed.UNKNOWN, container_id=H64)

    def test_without_knowing_the_way_to_the_root_nothing_is_called_host(self) -> None:
        assert classify("0::/user.slice", root="").managed is Managed.UNKNOWN


def test_a_folder_of_pods_without_a_readable_uid_is_unknown() -> None:
    assert classify(f"0::/kubepods/burstable/pod-name/{H64}", root=ROOT).managed is Managed.UNKNOWN


def test_a_pod_path_below_a_login_session_is_marked() -> None:
    path = f"/user.slice/user-1001.slice/user@1001.service/kubepods-pod{U_}.slice/cri-containerd-{H64}.scope"
    assert classify(f"0::{path}", root=ROOT) == Placement(Managed.K8S, U, H64, of_user=True)


@pytest.mark.parametrize("text", ["", "\n\n", "garbage", "x:y", "0::", "0::relative", "::::/kubepods"])
def test_a_text_that_says_nothing_is_unknown(text: str) -> None:
    assert classify(text, root=ROOT).managed is Managed.UNKNOWN


@pytest.mark.parametrize("end", ["\x1c", "\x85", "\u2028", "\r", "\x0b"])
def test_a_name_cannot_begin_a_line_of_its_own(end: str) -> None:
    """A user may call a folder of his session what he likes, but for a slash and a line feed."""
    forged = f"0::/user.slice/user-1001.slice/x{end}0::/kubepods/pod{U}/{H64}"
    assert classify(forged, root=ROOT) == Placement(Managed.K8S, U, H64, of_user=True)
