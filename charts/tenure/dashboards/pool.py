"""The pool of remote cards: who has them, who waits, and how fast promises become placements."""

from charts.tenure.dashboards.panels import FULL, THIRD, Graph, Number, Query, Rows, Section, build

# Every replica tells the same of the pool, so the largest answer stands for all.
BOARD = build(
    uid="tenure-pool",
    title="Tenure: pool",
    text="Remote cards: free, promised, held, draining; pods that wait for them; promises and placements.",
    sections=[
        Section(
            "Now",
            (
                Number(
                    title="Free cards",
                    text="Cards that could be given away now.",
                    query=Query("max(tenure_pool_free_cards)"),
                ),
                Number(
                    title="Held cards",
                    text="Cards of placed pods.",
                    query=Query('max(tenure_pool_cards{phase="bound"})'),
                ),
                Number(
                    title="Draining cards",
                    text="Cards whose pod ended and that are not seen to be empty yet.",
                    query=Query('max(tenure_pool_cards{phase="draining"})'),
                ),
                Number(
                    title="Waiting pods",
                    text="Pods that wait for cards.",
                    query=Query("max(tenure_pool_waiting_pods)"),
                ),
                Number(
                    title="Oldest wait",
                    text="Age of the oldest waiting pod.",
                    query=Query("max(tenure_pool_oldest_wait_seconds)"),
                    unit="s",
                    warn=3600,
                    bad=86_400,
                ),
                Number(
                    title="Waiting beside free cards",
                    text="Waiting pods that the free cards would serve, as the leader sees it.",
                    query=Query("max(tenure_pool_servable_pods and on (instance) tenure_lease_held == 1)"),
                    warn=1,
                    bad=10,
                ),
            ),
        ),
        Section(
            "Cards",
            (
                Graph(
                    title="Cards by state",
                    text="Free cards, and those in somebody's hands by phase.",
                    queries=(
                        Query("max(tenure_pool_free_cards)", "free"),
                        Query("max by (phase) (tenure_pool_cards)", "{{phase}}"),
                    ),
                    stacked=True,
                ),
                Graph(
                    title="Cards that are not offered",
                    text="By reason; OccupancyUnknown flags cards that are offered all the same.",
                    queries=(Query("max by (reason) (tenure_pool_card_reasons)", "{{reason}}"),),
                ),
                Graph(
                    title="Doubts",
                    text="Allocations that are not believed, and servers whose kubelet offers the same cards locally.",
                    queries=(
                        Query("max(tenure_pool_unbelieved_allocations)", "not believed"),
                        Query("max(tenure_pool_servers_offered_locally)", "offered locally"),
                    ),
                ),
                Graph(
                    title="Memory in use by server",
                    text="Memory of the cards that pods hold.",
                    queries=(
                        Query(
                            "sum by (server) (max by (server, device_uuid) (hami_remote_gpu_overview))",
                            "{{server}}",
                        ),
                    ),
                    unit="bytes",
                    stacked=True,
                ),
                Rows(
                    title="Cards",
                    text="Every card of the pool; 1: a pod holds it.",
                    query=Query(
                        "max by (server, endpoint, device_index, device_type, device_uuid) (hami_remote_gpu_allocated)"
                    ),
                    value="held",
                    span=FULL,
                ),
            ),
        ),
        Section(
            "Pods",
            (
                Graph(
                    title="Waiting pods",
                    text="Pods that wait for cards.",
                    queries=(Query("max(tenure_pool_waiting_pods)", "waiting"),),
                ),
                Graph(
                    title="Longest wait and longest draining",
                    text="Age of the oldest waiting pod, and of the card that drains for longest.",
                    queries=(
                        Query("max(tenure_pool_oldest_wait_seconds)", "waiting"),
                        Query("max(tenure_pool_longest_draining_seconds)", "draining"),
                    ),
                    unit="s",
                ),
                Rows(
                    title="Pods with the most memory",
                    text="The ten pods that hold the most memory of remote cards.",
                    query=Query(
                        "topk(10, sum by (namespace, pod)"
                        " (max by (namespace, pod, device_uuid) (hami_vgpu_memory_allocated_bytes)))"
                    ),
                    value="memory",
                    unit="bytes",
                ),
                Graph(
                    title="Promises",
                    text="Cards promised to waiting pods, per second.",
                    queries=(Query("sum(rate(tenure_pool_promises_total[$__rate_interval]))", "promises"),),
                    unit="ops",
                ),
            ),
        ),
        Section(
            "Scheduler",
            (
                Graph(
                    title="Filter calls",
                    text="What the scheduler's filter calls ended with.",
                    queries=(
                        Query(
                            "sum by (outcome) (rate(tenure_extender_filters_total[$__rate_interval]))",
                            "{{outcome}}",
                        ),
                    ),
                    unit="ops",
                    span=THIRD,
                ),
                Graph(
                    title="Bind calls",
                    text="What the scheduler's bind calls ended with.",
                    queries=(
                        Query(
                            "sum by (outcome) (rate(tenure_extender_binds_total[$__rate_interval]))",
                            "{{outcome}}",
                        ),
                    ),
                    unit="ops",
                    span=THIRD,
                ),
                Graph(
                    title="Writes of servers",
                    text="How compare-and-swaps of RemoteServer objects ended.",
                    queries=(
                        Query(
                            "sum by (outcome) (rate(tenure_pool_writes_total[$__rate_interval]))",
                            "{{outcome}}",
                        ),
                    ),
                    unit="ops",
                    span=THIRD,
                ),
                Graph(
                    title="Time of filter and bind",
                    text="99 of 100 calls are answered within this time.",
                    queries=(
                        Query(
                            "histogram_quantile(0.99, sum by (le)"
                            " (rate(tenure_extender_filter_seconds_bucket[$__rate_interval])))",
                            "filter",
                        ),
                        Query(
                            "histogram_quantile(0.99, sum by (le)"
                            " (rate(tenure_extender_bind_seconds_bucket[$__rate_interval])))",
                            "bind",
                        ),
                    ),
                    unit="s",
                    span=FULL,
                ),
            ),
        ),
    ],
)
