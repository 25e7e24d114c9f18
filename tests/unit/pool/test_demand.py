import pytest
from hypothesis import given
from hypothesis import strategies as st

from controllers.pool import demand, grant
from controllers.pool.demand import Demand, DemandError, Kind, Need
from controllers.pool.placement import fit
from service.names import REMOTE_GPU, REMOTE_GPU_MEMORY
from service.objects import Container, Quantity, ResourceRequirements
from tests.unit.pool import build


def of(*containers: Container, inits: tuple[Container, ...] = ()) -> Demand | None:
    return demand.of(containers, inits, REMOTE_GPU, REMOTE_GPU_MEMORY)


def slots(*containers: Container, inits: tuple[Container, ...] = ()) -> tuple[int, ...]:
    found = of(*containers, inits=inits)
    assert found is not None
    return found.slots


@pytest.mark.parametrize("quantity", ["2", 2, 2.0, "2000m", "2e0", "0.002k", "+2"])
def test_a_whole_number_is_read_in_every_spelling_of_a_quantity(quantity: str | float) -> None:
    limits = {REMOTE_GPU: quantity}
    assert slots(Container("main", None, ResourceRequirements(limits))) == (0, 0)


@pytest.mark.parametrize("quantity", ["500m", "1.5", "-1", "", "one", "1Zi", "0x10", "1e99", "9" * 60, 1.5])
def test_a_quantity_that_is_no_whole_number_of_cards_is_refused(quantity: str | float) -> None:
    with pytest.raises(DemandError, match=REMOTE_GPU):
        of(Container("main", None, ResourceRequirements({REMOTE_GPU: quantity})))


def test_memory_without_a_count_is_refused_with_what_to_write() -> None:
    with pytest.raises(DemandError, match=r'container "main" .* add hami.io/remote-gpu: "1" to its limits'):
        of(build.asks(remote_gpu_memory="8192"))


def test_zero_cards_with_memory_is_memory_without_a_count() -> None:
    with pytest.raises(DemandError, match="without"):
        of(build.asks(remote_gpu="0", remote_gpu_memory="8192"))


@pytest.mark.parametrize(
    "resources", [{"remote_gpu": "0"}, {"remote_gpu": "0", "remote_gpu_memory": "0"}, {}]
)
def test_zero_cards_ask_for_nothing(resources: dict[str, str]) -> None:
    limits: dict[str, Quantity] = {
        f"hami.io/{key.replace('_', '-')}": value for key, value in resources.items()
    }
    assert of(Container("main", None, ResourceRequirements(limits))) is None


def test_more_cards_than_any_server_has_are_refused() -> None:
    with pytest.raises(DemandError, match="1024 at most"):
        of(build.asks(remote_gpu="1025"))
    with pytest.raises(DemandError, match="the pod asks for 2048 cards"):
        of(build.asks("a", remote_gpu="1024"), build.asks("b", remote_gpu="1024"))


def test_requests_count_where_limits_do_not_name_the_resource() -> None:
    only_requests = Container("main", None, ResourceRequirements({"cpu": "1"}, {REMOTE_GPU: "3"}))
    assert slots(only_requests) == (0, 0, 0)


def test_app_containers_run_together_and_add_up() -> None:
    both = (build.asks("a", remote_gpu=1, remote_gpu_memory=10), build.asks("b", remote_gpu=2))
    assert slots(*both) == (10, 0, 0)


def test_an_init_container_shares_its_cards_with_what_runs_after_it() -> None:
    init = build.asks("init", remote_gpu=3, remote_gpu_memory=5)
    app = build.asks("app", remote_gpu=2, remote_gpu_memory=8)
    assert slots(app, inits=(init,)) == (8, 8, 5)


def test_a_sidecar_keeps_its_card_beside_everything_that_starts_later() -> None:
    sidecar = build.asks("side", always=True, remote_gpu=1)
    init = build.asks("init", remote_gpu=2)
    assert slots(build.asks(remote_gpu=1), inits=(sidecar, init)) == (0, 0, 0)
    assert slots(build.asks(remote_gpu=1), inits=(init, sidecar)) == (0, 0)


def test_an_empty_resource_name_disables_the_backend() -> None:
    assert demand.of([build.asks(remote_gpu=1)], [], "", "") is None


needs = st.lists(
    st.builds(
        Need, st.uuids().map(str), st.sampled_from(Kind), st.integers(0, 3), st.sampled_from([0, 10, 20, 40])
    ),
    min_size=1,
    max_size=6,
).map(lambda found: sorted(found, key=lambda need: need.kind is Kind.APP))


@given(needs, st.lists(st.sampled_from([10, 20, 40, 80]), max_size=12))
def test_cards_that_fit_the_slots_can_always_be_divided_among_the_containers(
    asked: list[Need], sizes: list[int]
) -> None:
    whole = Demand(tuple(asked))
    chosen = fit(whole.slots, build.cards(*sizes))
    if chosen is None:
        return
    shares = grant.divide(whole, chosen)
    sidecars: set[str] = set()
    for need, share in zip(asked, shares, strict=True):
        assert len(share) == need.count
        assert all(card.memory_mib >= need.memory_mib for card in share)
        ids = {card.id for card in share}
        assert not ids & sidecars
        if need.kind is Kind.SIDECAR:
            sidecars |= ids
    apps = [card.id for n, share in zip(asked, shares, strict=True) if n.kind is Kind.APP for card in share]
    assert len(apps) == len(set(apps))
    assert not set(apps) & sidecars


def test_a_pod_of_fifty_thousand_containers_is_refused_before_its_cards_are_counted_out() -> None:
    greedy = build.asks(remote_gpu=str(demand.MAX_CARDS))
    with pytest.raises(DemandError, match="50000 containers"):
        of(*[greedy] * 50_000)
    with pytest.raises(DemandError, match="1024000 cards"):
        of(*[greedy] * 1000)
    assert len(slots(inits=(greedy,) * 1000)) == demand.MAX_CARDS


@given(
    st.lists(
        st.builds(Need, st.just("c"), st.sampled_from(Kind), st.integers(0, 4), st.integers(0, 3)), max_size=6
    )
)
def test_the_number_of_cards_is_the_number_of_slots(needs: list[Need]) -> None:
    wanted = Demand(tuple(needs))
    assert wanted.cards == len(wanted.slots)
