"""What all sources together say about a card."""

from collections.abc import Iterable

import pytest

from controllers.occupancy.cards import Card
from controllers.occupancy.cgroups import UNREADABLE, Managed, Placement
from controllers.occupancy.evidence import Findings, Gap, Sighting, Why
from controllers.occupancy.holders import GONE, Scene, State, Verdict, judge
from controllers.occupancy.kin import Kin
from controllers.occupancy.pods import ContainerStatus, NodePod, NodePodStatus, PodIndex
from controllers.occupancy.processes import Described, Missing, Process
from service.objects import ObjectMeta

CARD = Card("acme", "a", "acme0")
OTHER = Card("acme", "b", "acme1")
HOST = Placement(Managed.HOST)
UID = "0f3b1c2d-4e5f-4071-8293-a4b5c6d7e8f9"
H64 = "0123456789abcdef" * 4
IN_POD = Placement(Managed.K8S, UID, H64)
LUPINE = "lupine_driver_server"
POD = NodePod(
    ObjectMeta("train", "ml", UID),
    NodePodStatus((ContainerStatus(f"containerd://{H64}"),)),
)


def process(pid: int, command: str = "python3", placement: Placement = HOST, **more: object) -> Process:
    fields: dict[str, object] = {"start": 100, "parent": 1, "group": pid} | more
    return Process(pid=pid, command=command, placement=placement, **fields)  # type: ignore[arg-type]


def scene(
    *described: Process, missing: dict[int, Missing] | None = None, pods: PodIndex | None = None
) -> Scene:
    table: dict[int, Described] = {item.pid: item for item in described} | dict(missing or {})
    return Scene(table, Kin(LUPINE, processes=table), pods or PodIndex.of([POD]))


def opened(pid: int, card: str = "a", start: int = 100) -> Sighting:
    return Sighting(card, pid, "open files", start)


def told(pid: int, card: str = "a", command: str = "") -> Sighting:
    return Sighting(card, pid, "tool", command=command)


def verdict(sightings: Iterable[Sighting], of: Scene, gaps: Iterable[Gap] = (), card: Card = CARD) -> Verdict:
    (result,) = judge([card], Findings(tuple(sightings), tuple(gaps)), of)
    return result


class TestThreeValues:
    def test_nobody_and_no_gap_is_free(self) -> None:
        seen = verdict([], scene())
        assert (seen.state, seen.in_use, seen.clean) == (State.FREE, False, True)

    def test_nobody_and_a_gap_is_unknown_with_the_reason(self) -> None:
        seen = verdict([], scene(), [Gap("tool", Why.SLOW, "tool did not answer within 5 s")])
        assert (seen.state, seen.in_use, seen.clean) == (State.UNKNOWN, None, False)
        assert seen.reason == "tool did not answer within 5 s"

    def test_a_gap_of_another_card_changes_nothing(self) -> None:
        gap = Gap("tool", Why.FAILED, "x", frozenset({"b"}))
        assert verdict([], scene(), [gap]).state is State.FREE

    def test_a_holder_counts_whatever_the_gaps(self) -> None:
        seen = verdict([told(7)], scene(process(7)), [Gap("tool", Why.FAILED, "x")])
        assert (seen.state, seen.in_use, seen.clean) == (State.HOST, True, False)

    def test_a_claim_is_explained_by_a_holder(self) -> None:
        claim = Gap("sysfs", Why.CLAIMED, "claimed", frozenset({"a"}))
        assert verdict([], scene(), [claim]).state is State.UNKNOWN
        seen = verdict([opened(7)], scene(process(7, placement=IN_POD)), [claim])
        assert (seen.state, seen.clean) == (State.K8S, True)

    def test_a_process_that_a_tool_could_not_place_is_placed_by_another_source(self) -> None:
        gap = Gap("tool", Why.UNATTRIBUTED, "one of two", frozenset({"a", "b"}), pid=7)
        findings = Findings((opened(7, "b"),), (gap,))
        states = [v.state for v in judge([CARD, OTHER], findings, scene(process(7)))]
        assert states == [State.FREE, State.HOST]
        alone = judge([CARD, OTHER], Findings(gaps=(gap,)), scene(process(7)))
        assert [v.state for v in alone] == [State.UNKNOWN, State.UNKNOWN]


class TestMerging:
    def test_one_process_seen_by_two_sources_is_one_holder(self) -> None:
        seen = verdict([told(7, command="x"), opened(7)], scene(process(7)))
        assert [(h.pid, h.command) for h in seen.holders] == [(7, "python3")]

    def test_a_process_id_that_was_used_again_is_not_the_holder(self) -> None:
        assert verdict([opened(7, start=99)], scene(process(7))).state is State.FREE

    def test_a_tools_word_stands_when_only_the_open_file_was_of_an_earlier_process(self) -> None:
        seen = verdict([opened(7, start=99), told(7)], scene(process(7)))
        assert [h.start for h in seen.holders] == [100]

    def test_host_and_pods_on_one_card_make_it_host_held(self) -> None:
        seen = verdict([opened(7), opened(8)], scene(process(7), process(8, placement=IN_POD)))
        assert seen.state is State.HOST
        assert [h.managed for h in seen.holders] == [Managed.HOST, Managed.K8S]


class TestMemoryWithoutALivingProcess:
    """C6, first card."""

    def test_the_card_is_held_and_nobody_knows_by_whom(self) -> None:
        seen = verdict([told(31794, command="[Not Found]")], scene(missing={31794: Missing.GONE}))
        assert (seen.in_use, seen.state, seen.clean) == (True, State.UNKNOWN, False)
        assert [(h.command, h.managed) for h in seen.holders] == [(GONE, Managed.UNKNOWN)]
        assert GONE in seen.reason

    def test_an_open_file_of_a_process_that_ended_holds_nothing(self) -> None:
        assert verdict([opened(7)], scene(missing={7: Missing.GONE})).state is State.FREE

    def test_a_process_that_cannot_be_inspected_holds_and_is_unknown(self) -> None:
        seen = verdict([told(26800, command="python3")], scene(missing={26800: Missing.UNREADABLE}))
        assert (seen.in_use, seen.state) == (True, State.UNKNOWN)
        assert seen.holders[0].command == "python3"


class TestPods:
    def test_the_uid_names_the_pod(self) -> None:
        (holder,) = verdict([opened(7)], scene(process(7, placement=IN_POD))).holders
        assert (holder.names_pod, holder.pod_uid, holder.container_id) == ("ml/train", UID, H64)

    def test_a_static_pod_is_named_by_its_mirror(self) -> None:
        digest = "4d1f60b2a6c0fdb7c1f2e3d4c5b6a798"
        mirror = NodePod(
            ObjectMeta("static-n1", "kube-system", UID, annotations={"kubernetes.io/config.hash": digest})
        )
        placed = process(7, placement=Placement(Managed.K8S, digest, H64))
        (holder,) = verdict([opened(7)], scene(placed, pods=PodIndex.of([mirror]))).holders
        assert (holder.managed, holder.names_pod) == (Managed.K8S, "kube-system/static-n1")

    def test_a_container_id_finds_the_pod_of_a_path_that_was_cut_off(self) -> None:
        sibling = process(7, placement=Placement(Managed.UNKNOWN, container_id=H64))
        seen = verdict([opened(7)], scene(sibling))
        assert (seen.state, seen.holders[0].names_pod) == (State.K8S, "ml/train")

    def test_a_pod_that_is_gone_while_its_process_lives_still_holds_as_kubernetes(self) -> None:
        seen = verdict([opened(7)], scene(process(7, placement=IN_POD), pods=PodIndex.of([])))
        assert (seen.state, seen.holders[0].names_pod) == (State.K8S, "")

    def test_a_pod_path_that_a_user_made_up_is_the_host(self) -> None:
        forged = process(7, placement=Placement(Managed.K8S, UID, H64, of_user=True))
        assert verdict([opened(7)], scene(forged, pods=PodIndex.of([]))).state is State.HOST
        assert verdict([opened(7)], scene(forged)).state is State.K8S

    def test_before_the_pods_are_listed_a_pod_path_is_believed(self) -> None:
        forged = process(7, placement=Placement(Managed.K8S, UID, H64, of_user=True))
        assert verdict([opened(7)], scene(forged, pods=PodIndex())).state is State.K8S

    def test_an_unreadable_cgroup_is_unknown_and_not_the_host(self) -> None:
        seen = verdict([opened(7)], scene(process(7, placement=UNREADABLE)))
        assert (seen.state, seen.in_use) == (State.UNKNOWN, True)


class TestMonitors:
    def test_a_monitor_of_root_does_not_count(self) -> None:
        monitor = process(7, "rbln_daemon", trusted=True)
        assert verdict([opened(7)], scene(monitor)).state is State.FREE

    def test_a_monitor_that_stays_too_long_counts(self) -> None:
        monitor = process(7, "rbln_daemon", trusted=True)
        tardy = frozenset({("a", 7, 100)})
        of = Scene({7: monitor}, Kin(LUPINE, processes={7: monitor}), PodIndex(), tardy)
        assert verdict([opened(7)], of).state is State.HOST

    @pytest.mark.parametrize("name", ["nvtop", "compute-domain-daemon"])
    def test_the_name_alone_proves_nothing(self, name: str) -> None:
        assert verdict([opened(7)], scene(process(7, name))).state is State.HOST
        assert verdict([opened(7)], scene(process(7, name, trusted=True))).state is State.FREE

    def test_a_monitor_that_is_a_script_is_known_by_the_script(self) -> None:
        monitor = process(7, "python3.11", script="rbln-stat", trusted=True)
        assert verdict([opened(7)], scene(monitor)).state is State.FREE

    def test_the_mps_server_holds_for_its_clients(self) -> None:
        assert (
            verdict([told(7)], scene(process(7, "nvidia-cuda-mps-server", trusted=True))).state is State.HOST
        )


class TestLupine:
    server = process(50, LUPINE, trusted=True)

    def child(self, placement: Placement = HOST, parent: int = 50) -> Process:
        return process(51, LUPINE, placement, parent=parent, group=50, trusted=True)

    def test_a_server_without_clients_leaves_its_card_free(self) -> None:
        seen = verdict([opened(50)], scene(self.server))
        assert (seen.state, seen.lupine_clients, seen.holders) == (State.FREE, 0, ())

    def test_a_child_is_a_client_and_never_a_host_holder(self) -> None:
        seen = verdict([opened(50), opened(51)], scene(self.server, self.child()))
        assert (seen.state, seen.lupine_clients, seen.in_use) == (State.FREE, 1, True)
        assert [(h.pid, h.managed) for h in seen.holders] == [(51, Managed.LUPINE)]

    def test_a_child_that_runs_something_else_is_the_servers_still(self) -> None:
        seen = verdict([opened(51)], scene(self.server, process(51, "helper", parent=50)))
        assert (seen.state, seen.lupine_clients) == (State.FREE, 1)

    def test_a_child_whose_server_died_is_a_client_still(self) -> None:
        seen = verdict([opened(51)], scene(self.child(parent=1), missing={50: Missing.GONE}))
        assert (seen.state, seen.lupine_clients) == (State.FREE, 1)

    def test_a_server_started_by_a_script_is_no_client(self) -> None:
        shell = process(40, "sh", group=40)
        seen = verdict([opened(50)], scene(shell, process(50, LUPINE, parent=40, group=40, trusted=True)))
        assert (seen.lupine_clients, seen.holders) == (0, ())

    def test_a_program_of_a_user_with_that_name_is_a_host_holder(self) -> None:
        assert verdict([opened(50)], scene(process(50, LUPINE))).state is State.HOST

    def test_clients_of_a_server_in_a_pod_are_counted_too(self) -> None:
        server = process(50, LUPINE, placement=IN_POD, trusted=True)
        seen = verdict([opened(51)], scene(server, self.child(placement=IN_POD)))
        assert (seen.state, seen.lupine_clients, seen.holders[0].names_pod) == (State.FREE, 1, "ml/train")

    def test_a_host_process_beside_clients_holds_the_card(self) -> None:
        seen = verdict([opened(51), opened(7)], scene(self.server, self.child(), process(7)))
        assert (seen.state, seen.lupine_clients) == (State.HOST, 1)

    def test_where_nobody_could_look_the_number_of_clients_is_not_zero(self) -> None:
        assert verdict([], scene(), [Gap("tool", Why.SLOW, "x")]).lupine_clients is None
