"""The roles for running the cluster: groups of Django's, each with the permissions for its work.

A migration creates them. Installations may change them, and create further groups, in the administration. A permission
of a later release is added to the groups by a migration of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

OPERATOR, ACCOUNTANT, AUDITOR = "operator", "accountant", "auditor"


def _of(label: str, words: str, *models: str) -> Iterable[str]:
    return (f"{label}.{word}_{model}" for model in models for word in words.split())


ROLES: Final[Mapping[str, frozenset[str]]] = {
    OPERATOR: frozenset(
        [
            *_of("fleet", "view change delete operate", "node"),
            *_of("fleet", "view change operate", "device"),
            *_of("fleet", "view add delete", "jointoken"),
            *_of("fleet", "view add change", "maintenancewindow", "reservation"),
            *_of("providers", "view add change delete", "nodeprovider"),
            "providers.view_pilot",
            *_of("sites", "view add change delete", "site"),
            "sites.view_sitejob",
            "fleet.view_alarm",
            "fleet.end_survivor",
            "fleet.release_fuse",
            *_of("pools", "view add change delete", "pool", "profile"),
            *_of("pools", "view", "quota", "budget", "limit", "priorityclass"),
            "pools.use_any_priority",
            *_of("jobs", "view", "job", "stage", "attempt", "event", "decision", "bundle"),
            *_of("jobs", "add change", "job"),
            "jobs.change_attempt",
            *_of("simulations", "view change", "simulation"),
            "access.view_project",
            *_of("retention", "view add change delete", "override"),
            "retention.view_removal",
            "access.delete_secret",
            "notifications.change_webhook",
            "job_templates.change_jobtemplate",
            "observability.view_tally",
            *_of("usage", "view", "ledgerentry", "price"),
        ]
    ),
    ACCOUNTANT: frozenset(
        [
            *_of("access", "view add change delete", "project", "member"),
            "access.view_user",
            *_of("pools", "view add change delete", "quota", "budget", "limit", "priorityclass"),
            "pools.view_pool",
            "usage.view_ledgerentry",
            *_of("usage", "view add change delete", "price"),
        ]
    ),
    AUDITOR: frozenset(
        [
            *_of("access", "view", "user", "project", "member", "token", "auditentry"),
            "auth.view_group",
            "admin.view_logentry",
            *_of("fleet", "view", "node", "device", "jointoken", "maintenancewindow", "reservation", "alarm"),
            *_of("providers", "view", "nodeprovider", "pilot"),
            *_of("sites", "view", "site", "sitejob"),
            *_of("pools", "view", "pool", "profile", "quota", "budget", "limit", "priorityclass"),
            *_of("jobs", "view", "job", "stage", "attempt", "event", "decision", "bundle"),
            "simulations.view_simulation",
            *_of("retention", "view", "override", "removal"),
            "observability.view_tally",
            *_of("usage", "view", "ledgerentry", "price"),
        ]
    ),
}


def install(group: Any, permission: Any) -> None:
    """Create the groups, and add their missing permissions; removes none.

    ``group`` and ``permission`` are Django's models, present or historical.
    """
    for name, wanted in ROLES.items():
        row, _made = group.objects.get_or_create(name=name)
        names = [each.split(".") for each in wanted]
        found = permission.objects.filter(
            content_type__app_label__in={label for label, _ in names}, codename__in={code for _, code in names}
        ).select_related("content_type")
        row.permissions.add(*(one for one in found if f"{one.content_type.app_label}.{one.codename}" in wanted))
