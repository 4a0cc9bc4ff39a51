"""The metrics of ``/metrics``: names, sorts, labels and what they mean. The reference page is made from this."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["counter", "gauge", "histogram", "info"]
_DEVICE: Final = ("pool", "node", "device", "uuid", "vendor", "kind", "model")


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. Its name is as Prometheus stores it: counters end in ``_total``, infos in ``_info``."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()

    @property
    def series(self) -> tuple[str, ...]:
        """The names under which Prometheus stores its series."""
        return (
            tuple(f"{self.name}_{end}" for end in ("bucket", "count", "sum"))
            if self.kind == "histogram"
            else (self.name,)
        )


METRICS: Final = (
    # -- the installation
    Metric("switchyard_build_info", "info", "The version of the control plane, and the name of its cluster.",
           ("version", "name")),
    Metric("switchyard_metric_series_left_out", "gauge",
           "Series of a metric that are left out because there are too many; absent where none are.", ("metric",)),
    Metric("switchyard_collection_seconds", "gauge", "How long it took to gather what this scrape says."),
    Metric("switchyard_redis_up", "gauge", "1 where Redis answers. Without it what is counted there is left out."),
    Metric("switchyard_database_size_bytes", "gauge", "The size of the database."),
    # -- jobs
    Metric("switchyard_jobs", "gauge", "Jobs that have not ended, by state.", ("state", "pool", "project")),
    Metric("switchyard_jobs_unplaced", "gauge", "Waiting stages by their first reason.", ("pool", "reason")),
    Metric("switchyard_jobs_submitted_total", "counter", "Jobs that were submitted.", ("pool", "project")),
    Metric("switchyard_jobs_finished_total", "counter", "Jobs that ended; result is completed, failed or cancelled.",
           ("pool", "project", "result")),
    Metric("switchyard_jobs_preempted_total", "counter",
           "Attempts that were ended in favour of others; reason is preempted, resize or move.", ("pool", "reason")),
    Metric("switchyard_jobs_requeued_total", "counter", "Stages that were queued again, by the cause of the end.",
           ("pool", "cause")),
    Metric("switchyard_attempts_finished_total", "counter",
           "Attempts that ended, by their cause; completed where there is none.", ("pool", "cause")),
    Metric("switchyard_lost_device_seconds_total", "counter",
           "Device-seconds of work that evictions discarded, on accelerators, from the newest checkpoint on.",
           ("pool", "cause")),
    Metric("switchyard_device_seconds_total", "counter",
           "Device-seconds (CPUs: core-seconds) that were held, counted when they are given back.",
           ("project", "kind")),
    Metric("switchyard_job_wait_seconds", "histogram",
           "How long stages waited for their first start, from when they might start.", ("pool",)),
    Metric("switchyard_job_start_prediction_error_seconds", "histogram",
           "How far first starts were from the time that was announced first, by direction (early, late).",
           ("pool", "direction")),
    Metric("switchyard_job_info", "info", "A stage that holds devices, of the newest that do.",
           ("number", "stage", "name", "pool", "project")),
    Metric("switchyard_job_progress_ratio", "gauge", "The share of its work that such a stage has reported as done.",
           ("number", "stage")),
    Metric("switchyard_job_step_seconds", "gauge",
           "How long a step of such a stage takes, where it reports its steps often enough to tell.",
           ("number", "stage")),
    Metric("switchyard_job_tokens_per_second", "gauge", "The tokens_per_s that such a stage reported last.",
           ("number", "stage")),
    Metric("switchyard_job_last_checkpoint_timestamp_seconds", "gauge",
           "When such a stage confirmed its newest checkpoint.", ("number", "stage")),
    Metric("switchyard_job_checkpoint_interval_seconds", "gauge", "How often such a stage was told to save.",
           ("number", "stage")),
    # -- the scheduler
    Metric("switchyard_scheduler_queue_depth", "gauge", "Waiting stages (PENDING and HELD).", ("pool",)),
    Metric("switchyard_scheduler_queue_head_timestamp_seconds", "gauge",
           "Since when the stage that waits longest might start.", ("pool",)),
    Metric("switchyard_scheduler_last_cycle_timestamp_seconds", "gauge",
           "When a scheduling cycle last ended well, to five seconds."),
    Metric("switchyard_scheduler_cycle_duration_seconds", "histogram", "How long scheduling cycles took."),
    Metric("switchyard_scheduler_decisions_total", "counter",
           "Stages that cycles decided on: started, evicted, or skipped because something had changed meanwhile.",
           ("outcome",)),
    Metric("switchyard_fragmentation_ratio", "gauge",
           "The share of free accelerators that lies on nodes where others of the kind are held.", ("kind",)),
    Metric("switchyard_largest_gang_devices", "gauge",
           "The most accelerators of a kind that are wholly free on one node.", ("kind",)),
    # -- projects
    Metric("switchyard_project_weight", "gauge", "The weight of a project in fair share.", ("project",)),
    Metric("switchyard_project_devices_held", "gauge", "Devices (CPUs: cores) that a project holds.",
           ("project", "pool", "kind")),
    Metric("switchyard_quota_nominal", "gauge", "The quota in devices (CPUs: cores); absent where it is unlimited.",
           ("project", "kind", "model", "normalised")),
    Metric("switchyard_quota_borrowing_limit", "gauge", "How much may be borrowed; absent where that is unlimited.",
           ("project", "kind", "model", "normalised")),
    Metric("switchyard_quota_lending_limit", "gauge", "How much may be lent; absent where that is unlimited.",
           ("project", "kind", "model", "normalised")),
    Metric("switchyard_quota_used", "gauge", "How much of it is in use, what is borrowed included.",
           ("project", "kind", "model", "normalised")),
    Metric("switchyard_quota_borrowed", "gauge", "How much more than the quota is in use.",
           ("project", "kind", "model", "normalised")),
    Metric("switchyard_quota_lent", "gauge", "How much of it others of the cohort have borrowed.",
           ("project", "kind", "model", "normalised")),
    Metric("switchyard_budget_device_seconds", "gauge",
           "A budget of the present period; kind is empty for all devices other than CPUs.",
           ("project", "budget", "kind", "normalised", "period", "at_end")),
    Metric("switchyard_budget_used_device_seconds", "gauge", "What of it is used, counted once a minute.",
           ("project", "budget", "kind", "normalised", "period", "at_end")),
    # -- devices
    Metric("switchyard_device_utilization_ratio", "gauge", "The newest measurement, 0 to 1.", _DEVICE),
    Metric("switchyard_device_memory_used_bytes", "gauge", "Memory in use.", _DEVICE),
    Metric("switchyard_device_memory_total_bytes", "gauge", "All its memory.", _DEVICE),
    Metric("switchyard_device_power_watts", "gauge", "The power that it draws.", _DEVICE),
    Metric("switchyard_device_temperature_celsius", "gauge", "Its temperature.", _DEVICE),
    Metric("switchyard_device_health", "gauge", "1 where stages may run on it: OK or DEGRADED.", _DEVICE),
    Metric("switchyard_device_allocated", "gauge", "1 where a stage holds it or a share of it.", _DEVICE),
    Metric("switchyard_device_held_idle", "gauge",
           "1 where it has been held for a quarter of an hour and was hardly used in that time.", _DEVICE),
    # -- nodes
    Metric("switchyard_node_state", "gauge", "1 for the state that the node has.", ("node", "pool", "state")),
    Metric("switchyard_agent_last_heartbeat_timestamp_seconds", "gauge", "When its agent reported last.", ("node",)),
    Metric("switchyard_agent_info", "info", "The version of a node's agent.", ("node", "version")),
    Metric("switchyard_node_filesystem_free_bytes", "gauge", "Free bytes of a local file system.", ("node", "mount")),
    Metric("switchyard_node_filesystem_size_bytes", "gauge", "Its size.", ("node", "mount")),
    # -- providers of nodes
    Metric("switchyard_provider_pilots", "gauge", "Pilots of a provider that are not gone, by state.",
           ("provider", "state")),
    Metric("switchyard_provider_failures", "gauge",
           "How often in a row the engine of a provider could not be asked, or refused a pilot.", ("provider",)),
    # -- the platform
    Metric("switchyard_alarms", "gauge", "Alarms that stand.", ("kind",)),
    Metric("switchyard_http_request_duration_seconds", "histogram",
           "How long web servers and gateways took to answer, by the pattern of the address.",
           ("route", "method", "status")),
    Metric("switchyard_websocket_clients", "gauge", "Open sockets of browsers."),
    Metric("switchyard_celery_queue_messages", "gauge", "Messages that no worker has taken yet.", ("queue",)),
    Metric("switchyard_celery_workers", "gauge", "Workers that take a queue.", ("queue",)),
    Metric("switchyard_celery_task_failures_total", "counter", "How often a task failed.", ("task",)),
    Metric("switchyard_celery_task_last_success_timestamp_seconds", "gauge", "When a task last ended well.", ("task",)),
)  # fmt: skip
BY_NAME: Final = {metric.name: metric for metric in METRICS}
