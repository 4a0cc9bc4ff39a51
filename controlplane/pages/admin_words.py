"""What the administration calls applications, models and fields, in the reader's language.

Django derives these names from those of the code. Here they get their translations, under a context of their own, since
a name such as "at" is a whole sentence elsewhere.
"""

from __future__ import annotations

from typing import Any, Final

from django.contrib.admin import AdminSite
from django.utils import translation
from django.utils.translation import pgettext_lazy

CONTEXT: Final = "administration"
TITLES: Final = {
    "access": "Access",
    "fleet": "Fleet",
    "functions": "Functions",
    "job_templates": "Job templates",
    "jobs": "Jobs",
    "mfa": "Second factor",
    "pools": "Pools",
    "providers": "Providers",
    "retention": "Retention",
    "schedules": "Schedules",
    "services": "Services",
    "sites": "Sites",
    "socialaccount": "Sign-in elsewhere",
    "usage": "Usage",
}
"""The titles of applications, by their labels."""

# The names of models and of the fields that are shown.
WORDS: Final = frozenset(
    (
        "action", "active", "actor", "actor id", "address", "after", "agent version", "allocated ms",
        "allowed projects", "alternative", "announced", "answered at", "arch", "array", "array index", "asked at",
        "at", "at end", "attempt", "attempt count", "attempts", "attributes", "audit entry", "authenticator",
        "authenticators", "before", "begin at", "borrowing limit", "budget", "budget node hours", "budgets", "bundle",
        "bundles", "busy ms", "cancelled at", "cancelled by", "capacity milli", "catch up", "cause", "changed at",
        "charged ms", "checkpoint every s", "claimed memory bytes", "claimed milli", "code", "cohort", "condition",
        "condition at", "conditions", "contact lost at", "created at", "credential", "cron", "day", "decision",
        "decisions", "default limit s", "default project", "deleted at", "deployed function", "deployed functions",
        "description", "detail", "device", "devices", "drains at", "due at", "duration ms", "eligible at", "enabled",
        "ended at", "ends at", "epoch", "estimate", "evaluated at", "event", "event seq", "events", "events gone",
        "evicted", "exit code", "expected", "expires at", "failed ms", "failures", "fault", "features", "file",
        "fingerprint", "first day", "first promise", "former", "function", "function call", "function calls",
        "funnel", "gain s", "generation", "gone at", "handle", "head", "health", "health reason", "heard at",
        "held by", "hostname", "hours", "idle s", "index", "inference service", "inference services", "is array",
        "is failed", "is healthy", "is left", "is paused", "isolation", "job", "job template", "job templates",
        "jobs", "join token", "join tokens", "joined at", "key", "kind", "known ms", "label", "labels", "language",
        "last day", "last report at", "last used at", "lasts s", "leaving at", "ledger entries", "ledger entry",
        "lending limit", "limit", "limits", "links", "load", "locations", "log at", "log attempt", "log bytes",
        "looked at", "lost after s", "made at", "made by", "maintenance window", "maintenance windows",
        "max attempts", "max limit s", "max nodes", "members", "memory bytes", "millijoules", "min nodes",
        "min runtime s", "mode", "model", "most jobs", "name", "needs", "news at", "next at", "node", "node provider",
        "node providers", "nodes", "nominal", "normalised", "numa", "number", "object id", "options", "os", "outcome",
        "outstanding", "over at", "overlap", "override", "overrides", "parameters", "params", "part", "patience s",
        "per device hour", "period", "pilot", "pilots", "planned", "pool", "pools", "port", "powered ms",
        "preempted ms", "preemptible", "preemptions", "present", "price", "prices", "priority", "priority class",
        "profile", "profiles", "progress", "progress at", "progress share", "project", "projects", "projects only",
        "promise", "provider", "queued", "quota", "quotas", "ready at", "reason", "reasons", "refusals", "removal",
        "removals", "replanned", "replanned said", "replica", "replicas", "request id", "reservation", "reservations",
        "resized to", "restricted", "retry at", "revision", "running", "running at", "runs as", "said", "schedule",
        "schedule run", "schedule runs", "schedules", "scopes", "seen generation", "seq", "service", "service of",
        "service revision", "service revisions", "settings", "sha256", "shadow profile", "shape", "shapes", "signal",
        "simulated", "site", "site job", "site jobs", "sites", "size bytes", "skipped", "source", "spec",
        "staff only", "stage", "stages", "started", "started at", "starts at", "state", "state at", "status",
        "stop at", "stop devices", "stop for", "stop grace s", "stop note", "stop why", "stopped at", "stopped by",
        "storage path", "submitted at", "tag", "taken at", "text", "theme", "time zone", "title", "token", "tokens",
        "tries", "type", "up at", "url", "used at", "used hours", "user", "users", "uses left", "uuid", "valid from",
        "value", "values", "vendor", "version", "via", "wait s", "waiting", "waits", "wanted", "weight", "went",
        "why", "why here", "window", "wishes", "zone",
    )
)  # fmt: skip


def apply(site: AdminSite) -> None:
    """Give the models of this site, and their fields and applications, names that are translated when shown."""
    for model in site._registry:
        meta: Any = model._meta
        meta.app_config.verbose_name = _word(TITLES.get(meta.app_label, meta.app_config.verbose_name))
        meta.verbose_name, meta.verbose_name_plural = _name(meta.verbose_name), _name(meta.verbose_name_plural)
        for field in meta.get_fields():
            if hasattr(field, "verbose_name"):
                field.verbose_name = _name(field.verbose_name)


def _name(name: Any) -> Any:
    """The name if the code translates it itself, or is not in the list; else one that is translated when shown."""
    with translation.override(None):
        plain = str(name)
    return _word(plain) if plain in WORDS else name


def _word(word: Any) -> Any:
    return pgettext_lazy(CONTEXT, word)
