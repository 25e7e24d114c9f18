from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.kube import resources
from service.kube.resources import NODES, PODS, REMOTE_SERVERS


def test_core_and_group_kinds_live_under_their_own_roots() -> None:
    assert PODS.path() == "/api/v1/pods"
    assert PODS.path("a") == "/api/v1/namespaces/a/pods"
    assert PODS.path("a", "b", "binding") == "/api/v1/namespaces/a/pods/b/binding"
    assert NODES.path(name="n") == "/api/v1/nodes/n"
    assert REMOTE_SERVERS.path(name="n", subresource="status") == (
        "/apis/tenure.dev/v1alpha1/remoteservers/n/status"
    )


@pytest.mark.parametrize(
    ("namespace", "name", "subresource"),
    [(None, "b", None), ("a", None, "status"), ("", "b", None), ("a", "", None), ("a", "..", None)],
)
def test_a_path_that_would_mean_another_object_is_refused(
    namespace: str | None, name: str | None, subresource: str | None
) -> None:
    with pytest.raises(ValueError, match="name"):
        PODS.path(namespace, name, subresource)


def test_a_cluster_scoped_kind_takes_no_namespace() -> None:
    with pytest.raises(ValueError, match="cluster-scoped"):
        NODES.path("a", "n")


@given(st.text(min_size=1).filter(lambda text: text not in {".", ".."}))
def test_no_name_can_leave_its_segment(name: str) -> None:
    path = PODS.path("a", name)
    assert path.count("/") == PODS.path("a", "b").count("/")
    assert not set("?#") & set(path)
    assert unquote(path.rsplit("/", 1)[1]) == name


def test_an_object_states_its_api_version() -> None:
    assert PODS.api_version == "v1"
    assert resources.LEASES.api_version == "coordination.k8s.io/v1"
