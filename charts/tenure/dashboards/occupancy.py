"""What the node agents see: who holds each card, what they cannot see, regions of containers, and claim templates."""

from charts.tenure.dashboards.panels import THIRD, Graph, Number, Query, Rows, Section, build

BOARD = build(
    uid="tenure-occupancy",
    title="Tenure: occupancy",
    text="Cards by holder as the node agents see them, vGPU regions, and device claim templates.",
    sections=[
        Section(
            "Now",
            (
                Number(
                    title="Cards in use",
                    text="Cards that somebody holds.",
                    query=Query("sum(rm_accel_accelerators_in_use)"),
                ),
                Number(
                    title="Held outside Kubernetes",
                    text="Cards that a process of the host holds.",
                    query=Query("sum(rm_accel_accelerators_host_held)"),
                    warn=1,
                ),
                Number(
                    title="Unknown cards",
                    text="Cards of which it is not known whether they are free.",
                    query=Query("sum(tenure_occupancy_unknown_cards)"),
                    warn=1,
                ),
                Number(
                    title="Region files",
                    text="Region files of containers on all nodes.",
                    query=Query("sum(tenure_regions)"),
                ),
                Number(
                    title="Failing checks",
                    text="Checks of claim templates that fail.",
                    query=Query("count(max by (template, check) (tenure_claims_check_verdict) == 0)"),
                    warn=1,
                    empty="0",
                ),
                Number(
                    title="Node agents",
                    text="Agents that are scraped.",
                    query=Query("count(tenure_occupancy_scan_seconds_count)"),
                ),
            ),
        ),
        Section(
            "Cards",
            (
                Graph(
                    title="In use, by model",
                    text="Cards that somebody holds.",
                    queries=(
                        Query(
                            "sum by (vendor, model) (rm_accel_accelerators_in_use)", "{{vendor}} {{model}}"
                        ),
                    ),
                    stacked=True,
                    span=THIRD,
                ),
                Graph(
                    title="Held outside Kubernetes, by node agent",
                    text="Cards that a process of the host holds.",
                    queries=(Query("sum by (instance) (rm_accel_accelerators_host_held)", "{{instance}}"),),
                    span=THIRD,
                ),
                Graph(
                    title="Unknown, by node agent",
                    text="Cards of which it is not known whether they are free.",
                    queries=(Query("sum by (instance) (tenure_occupancy_unknown_cards)", "{{instance}}"),),
                    span=THIRD,
                ),
                Graph(
                    title="What sources could not see",
                    text="Gaps of scans, by source and reason.",
                    queries=(
                        Query(
                            "sum by (source, reason) (rate(tenure_occupancy_source_errors_total[$__rate_interval]))",
                            "{{source}}: {{reason}}",
                        ),
                    ),
                    unit="ops",
                    span=THIRD,
                ),
                Graph(
                    title="Duration of scans",
                    text="99 of 100 scans end within this time.",
                    queries=(
                        Query(
                            "histogram_quantile(0.99, sum by (le)"
                            " (rate(tenure_occupancy_scan_seconds_bucket[$__rate_interval])))",
                            "scan",
                        ),
                    ),
                    unit="s",
                    span=THIRD,
                ),
                Graph(
                    title="Results that were not written",
                    text="By what could not be written: profiles, node, RemoteServer.",
                    queries=(
                        Query(
                            "sum by (sink) (rate(tenure_occupancy_write_failures_total[$__rate_interval]))",
                            "{{sink}}",
                        ),
                    ),
                    unit="ops",
                    span=THIRD,
                ),
            ),
        ),
        Section(
            "Regions",
            (
                Graph(
                    title="Region files",
                    text="By kind and layout.",
                    queries=(Query("sum by (kind, layout) (tenure_regions)", "{{kind}} {{layout}}"),),
                    stacked=True,
                    span=THIRD,
                ),
                Graph(
                    title="Cleaning",
                    text="Ledger records and files removed because their process or container is gone.",
                    queries=(
                        Query("sum(rate(tenure_region_pruned_records_total[$__rate_interval]))", "records"),
                        Query(
                            "sum by (cause) (rate(tenure_region_removed_files_total[$__rate_interval]))",
                            "files ({{cause}})",
                        ),
                        Query(
                            "sum(rate(tenure_region_leftovers_removed_total[$__rate_interval]))", "leftovers"
                        ),
                    ),
                    unit="ops",
                    span=THIRD,
                ),
                Graph(
                    title="Left alone",
                    text="Files that were refused, locks that were taken, records with impossible amounts.",
                    queries=(
                        Query(
                            "sum by (reason) (rate(tenure_region_refusals_total[$__rate_interval]))",
                            "{{reason}}",
                        ),
                        Query("sum(rate(tenure_region_lock_waits_total[$__rate_interval]))", "lock taken"),
                        Query("sum(rate(tenure_region_corrupt_records_total[$__rate_interval]))", "corrupt"),
                    ),
                    unit="ops",
                    span=THIRD,
                ),
                Graph(
                    title="Volume calls of kubelet",
                    text="By method and code.",
                    queries=(
                        Query(
                            "sum by (method, code) (rate(tenure_csi_calls_total[$__rate_interval]))",
                            "{{method}} {{code}}",
                        ),
                    ),
                    unit="ops",
                ),
                Rows(
                    title="Containers with the most memory",
                    text="What the living processes of a container charged to its ledger.",
                    query=Query("topk(10, max by (namespace, pod, container) (tenure_region_ledger_bytes))"),
                    value="memory",
                    unit="bytes",
                ),
            ),
        ),
        Section(
            "Claim templates",
            (
                Rows(
                    title="Checks",
                    text="1: passes, 0: fails, -1: unknown.",
                    query=Query("max by (template, check) (tenure_claims_check_verdict)"),
                    value="verdict",
                ),
                Graph(
                    title="Room",
                    text="Pods that a template still serves.",
                    queries=(Query("max by (template) (tenure_claims_capacity_pods)", "{{template}}"),),
                ),
                Graph(
                    title="Rounds",
                    text="Rounds of checks, and those that could not read the cluster.",
                    queries=(
                        Query("sum(rate(tenure_claims_checks_total[$__rate_interval]))", "rounds"),
                        Query("sum(rate(tenure_claims_check_failures_total[$__rate_interval]))", "failed"),
                    ),
                    unit="ops",
                ),
            ),
        ),
    ],
)
