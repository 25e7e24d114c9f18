"""Tenure itself: is it up and in agreement, is it trusted, is it fast, and what does it cost."""

from charts.tenure.dashboards.panels import THIRD, Graph, Number, Query, Section, build

WEBHOOK = 'name="pods.tenure.dev"'
# Metrics that every process has: only of ours.
OURS = "and on (instance, job) tenure_build_info"

BOARD = build(
    uid="tenure-health",
    title="Tenure: health",
    text="Readiness, leadership, certificates, guard policies, admission, event loop, API calls, cost.",
    sections=[
        Section(
            "Now",
            (
                Number(
                    title="Ready",
                    text="Processes that ask for traffic.",
                    query=Query("sum(tenure_ready)"),
                    warn=2,
                    bad=1,
                    low=True,
                ),
                Number(
                    title="Leaders",
                    text="Replicas that lead: one.",
                    query=Query("sum(tenure_lease_held)"),
                    warn=1,
                    bad=1,
                    low=True,
                ),
                Number(
                    title="Versions",
                    text="Different versions that run.",
                    query=Query("count(count by (version) (tenure_build_info))"),
                    warn=2,
                ),
                Number(
                    title="First certificate to end",
                    text="Time until the first certificate in use ends.",
                    query=Query("min(tenure_certificate_seconds_left)"),
                    unit="s",
                    warn=86_400,
                    bad=14_400,
                    low=True,
                ),
                Number(
                    title="Guard policies in force",
                    text="Of two, as the replica sees it that sees the least.",
                    query=Query("min(sum by (instance) (tenure_guard_policy_in_force))"),
                    warn=2,
                    bad=1,
                    low=True,
                ),
                Number(
                    title="Task faults",
                    text="Tasks that ended although they must run for ever, in a day.",
                    query=Query("sum(increase(tenure_task_faults_total[1d]))"),
                    warn=1,
                    bad=1,
                ),
            ),
        ),
        Section(
            "Readiness and trust",
            (
                Graph(
                    title="Readiness conditions that are not met",
                    text="By instance and condition.",
                    queries=(
                        Query(
                            "1 - min by (instance, condition) (tenure_ready_condition)",
                            "{{instance}} {{condition}}",
                        ),
                    ),
                    span=THIRD,
                ),
                Graph(
                    title="Certificates: time left",
                    text="Until the certificate in use ends.",
                    queries=(
                        Query(
                            "min by (certificate, instance) (tenure_certificate_seconds_left)",
                            "{{certificate}} {{instance}}",
                        ),
                    ),
                    unit="s",
                    span=THIRD,
                ),
                Graph(
                    title="Certificates: work",
                    text="Renewals, writes of the caBundle, and failed tries.",
                    queries=(
                        Query(
                            "sum by (certificate) (rate(tenure_certificate_renewals_total[$__rate_interval]))",
                            "renewed {{certificate}}",
                        ),
                        Query("sum(rate(tenure_certificate_injections_total[$__rate_interval]))", "caBundle"),
                        Query(
                            "sum by (area) (rate(tenure_certificate_errors_total[$__rate_interval]))",
                            "failed {{area}}",
                        ),
                    ),
                    unit="ops",
                    span=THIRD,
                ),
                Graph(
                    title="Trusted by the API server",
                    text="1 while the caBundle leads to the certificate that is served.",
                    queries=(Query("min by (instance) (tenure_certificate_trusted)", "{{instance}}"),),
                    span=THIRD,
                ),
                Graph(
                    title="Guard policies in force",
                    text="1 while the policy and its binding deny.",
                    queries=(Query("min by (policy) (tenure_guard_policy_in_force)", "{{policy}}"),),
                    span=THIRD,
                ),
                Graph(
                    title="Leadership",
                    text="1 for the replica that leads.",
                    queries=(Query("max by (instance) (tenure_lease_held)", "{{instance}}"),),
                    span=THIRD,
                ),
            ),
        ),
        Section(
            "Admission",
            (
                Graph(
                    title="Calls by outcome",
                    text="Admission calls as Tenure answered them.",
                    queries=(
                        Query(
                            "sum by (outcome) (rate(tenure_admission_requests_total[$__rate_interval]))",
                            "{{outcome}}",
                        ),
                    ),
                    unit="ops",
                    span=THIRD,
                ),
                Graph(
                    title="Time of a call",
                    text="99 of 100 calls: as Tenure and as the API server measure it.",
                    queries=(
                        Query(
                            "histogram_quantile(0.99, sum by (le)"
                            " (rate(tenure_admission_duration_seconds_bucket[$__rate_interval])))",
                            "Tenure",
                        ),
                        Query(
                            "histogram_quantile(0.99, sum by (le)"
                            f" (rate(apiserver_admission_webhook_admission_duration_seconds_bucket{{{WEBHOOK}}}"
                            "[$__rate_interval])))",
                            "API server",
                        ),
                    ),
                    unit="s",
                    span=THIRD,
                ),
                Graph(
                    title="Calls that failed at the API server",
                    text="Since the API server started. Failed open: the pod came in without Tenure.",
                    queries=(
                        Query(
                            f"sum(apiserver_admission_webhook_fail_open_count{{{WEBHOOK}}})", "failed open"
                        ),
                        Query(
                            "sum by (error_type) (apiserver_admission_webhook_rejection_count"
                            f'{{{WEBHOOK},error_type!="no_error"}})',
                            "rejected: {{error_type}}",
                        ),
                    ),
                    span=THIRD,
                ),
                Graph(
                    title="Refused pods",
                    text="By reason.",
                    queries=(
                        Query(
                            "sum by (reason) (rate(tenure_admission_refusals_total[$__rate_interval]))",
                            "{{reason}}",
                        ),
                    ),
                    unit="ops",
                    span=THIRD,
                ),
                Graph(
                    title="Forged keys",
                    text="Decision keys that were removed from new pods.",
                    queries=(
                        Query("sum(rate(tenure_admission_stripped_keys_total[$__rate_interval]))", "removed"),
                    ),
                    unit="ops",
                    span=THIRD,
                ),
                Graph(
                    title="Calls under way",
                    text="Calls whose body is being read.",
                    queries=(Query("sum by (instance) (tenure_admission_in_flight)", "{{instance}}"),),
                    span=THIRD,
                ),
            ),
        ),
        Section(
            "API server",
            (
                Graph(
                    title="Calls",
                    text="Calls to the API server by verb.",
                    queries=(
                        Query(
                            "sum by (verb) (rate(tenure_kube_requests_total[$__rate_interval]))", "{{verb}}"
                        ),
                    ),
                    unit="ops",
                    span=THIRD,
                ),
                Graph(
                    title="Failures",
                    text="Calls, lists and watches that failed.",
                    queries=(
                        Query(
                            "sum by (verb, failure) (rate(tenure_kube_failures_total[$__rate_interval])) > 0"
                            " or sum(rate(tenure_kube_failures_total[$__rate_interval]))",
                            "{{verb}} {{failure}}",
                        ),
                        Query(
                            "sum(rate(tenure_kube_stream_failures_total[$__rate_interval]))",
                            "lists and watches",
                        ),
                    ),
                    unit="ops",
                    span=THIRD,
                ),
                Graph(
                    title="Time of a call",
                    text="99 of 100 calls.",
                    queries=(
                        Query(
                            "histogram_quantile(0.99, sum by (le)"
                            " (rate(tenure_kube_request_seconds_bucket[$__rate_interval])))",
                            "call",
                        ),
                    ),
                    unit="s",
                    span=THIRD,
                ),
                Graph(
                    title="Objects followed",
                    text="By kind and instance: replicas should agree.",
                    queries=(
                        Query(
                            "max by (instance, resource) (tenure_kube_objects)", "{{resource}} {{instance}}"
                        ),
                    ),
                    span=THIRD,
                ),
                Graph(
                    title="Watch events",
                    text="Events received, by kind of object.",
                    queries=(
                        Query(
                            "sum by (resource) (rate(tenure_kube_watch_events_total[$__rate_interval]))",
                            "{{resource}}",
                        ),
                    ),
                    unit="ops",
                    span=THIRD,
                ),
                Graph(
                    title="Silence of watches",
                    text="Since the last event; bookmarks come about every minute.",
                    queries=(
                        Query(
                            "max by (resource) (time() - (tenure_kube_last_event_timestamp_seconds > 0))",
                            "{{resource}}",
                        ),
                    ),
                    unit="s",
                    span=THIRD,
                ),
            ),
        ),
        Section(
            "Process",
            (
                Graph(
                    title="Lag of the event loop",
                    text="99 of 100 times, what is due runs within this time.",
                    queries=(
                        Query(
                            "histogram_quantile(0.99, sum by (instance, le)"
                            " (rate(tenure_loop_lag_seconds_bucket[$__rate_interval])))",
                            "{{instance}}",
                        ),
                    ),
                    unit="s",
                    span=THIRD,
                ),
                Graph(
                    title="Memory",
                    text="Resident memory.",
                    queries=(Query(f"process_resident_memory_bytes {OURS}", "{{instance}}"),),
                    unit="bytes",
                    span=THIRD,
                ),
                Graph(
                    title="CPU",
                    text="Cores in use.",
                    queries=(
                        Query(f"rate(process_cpu_seconds_total[$__rate_interval]) {OURS}", "{{instance}}"),
                    ),
                    span=THIRD,
                ),
                Graph(
                    title="Reconciles",
                    text="By controller and result.",
                    queries=(
                        Query(
                            "sum by (controller, result) (rate(tenure_controller_reconciles_total[$__rate_interval]))",
                            "{{controller}} {{result}}",
                        ),
                    ),
                    unit="ops",
                    span=THIRD,
                ),
                Graph(
                    title="Keys that wait",
                    text="Keys in the queues of controllers.",
                    queries=(Query("sum by (controller) (tenure_controller_queue_keys)", "{{controller}}"),),
                    span=THIRD,
                ),
                Graph(
                    title="Answers of the listeners",
                    text="By listener and status, admission excepted.",
                    queries=(
                        Query(
                            "sum by (listener, status) (rate(tenure_http_requests_total[$__rate_interval]))",
                            "{{listener}} {{status}}",
                        ),
                    ),
                    unit="ops",
                    span=THIRD,
                ),
            ),
        ),
    ],
)
