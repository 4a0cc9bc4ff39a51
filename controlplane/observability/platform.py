"""Gathers what ``/metrics`` says of the control plane itself: tasks, alarms, queues, requests."""

from __future__ import annotations

from django.conf import settings
from django.db import connection
from django.db.models import Count
from redis import Redis

from controlplane import counted
from controlplane.changes import CYCLE_TASK
from controlplane.fleet import alarms
from controlplane.fleet.models import Alarm, TaskRecord
from controlplane.observability.gathering import Gathered
from controlplane.workers import presence


def gather(into: Gathered) -> None:
    """Gather what the database says."""
    into.set("switchyard_build_info", 1, settings.VERSION, settings.CLUSTER_NAME)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_database_size(current_database())")
        into.set("switchyard_database_size_bytes", cursor.fetchone()[0])
    for kind in alarms.KINDS:
        into.set("switchyard_alarms", 0, kind)
    for kind, count in Alarm.objects.order_by("kind").values_list("kind").annotate(Count("id")):
        into.set("switchyard_alarms", count, kind)
    for task in TaskRecord.objects.order_by("name"):
        into.set("switchyard_celery_task_failures_total", task.failures, task.name)
        done_at = task.done_at.timestamp() if task.done_at else None
        into.set("switchyard_celery_task_last_success_timestamp_seconds", done_at, task.name)
        if task.name == CYCLE_TASK:
            into.set("switchyard_scheduler_last_cycle_timestamp_seconds", done_at)


def gather_from_redis(into: Gathered, redis: Redis) -> None:
    """Gather what Redis says. Raises ``RedisError`` before anything is set."""
    sums, sockets = counted.sums(redis), counted.open_sockets(redis)
    waiting = [int(redis.llen(queue)) for queue in settings.QUEUES]
    workers = [one for one in presence.workers(redis) if not one.stands_by]
    into.set("switchyard_websocket_clients", sockets)
    for queue, messages in zip(settings.QUEUES, waiting, strict=True):
        into.set("switchyard_celery_queue_messages", messages, queue)
        into.set("switchyard_celery_workers", sum(queue in one.queues for one in workers), queue)
    for sort, one in sorted(sums.items()):
        match sort:
            case ("cycle", bucket):
                into.observe(
                    "switchyard_scheduler_cycle_duration_seconds", counted.CYCLE_BOUNDS, int(bucket), one.count,
                    one.amount,
                )  # fmt: skip
            case ("http", route, method, status, bucket):
                into.observe(
                    "switchyard_http_request_duration_seconds", counted.REQUEST_BOUNDS, int(bucket), one.count,
                    one.amount, route, method, status,
                )  # fmt: skip
