"""Prices in the administration, and the ledger to read."""

from __future__ import annotations

from django.contrib import admin

from controlplane.accounts.admin import Audited
from controlplane.jobs.admin import ReadOnly
from controlplane.usage.models import LedgerEntry, Price


@admin.register(Price)
class PriceAdmin(Audited):
    """The price table."""

    list_display = ["kind", "model", "per_device_hour", "valid_from"]
    list_filter = ["kind"]


@admin.register(LedgerEntry)
class LedgerEntryAdmin(ReadOnly):
    """The daily ledger."""

    list_display = ["day", "project", "user", "pool", "kind", "model", "allocated_ms", "busy_ms", "attempts"]
    list_filter = ["kind", "pool"]
    list_select_related = ["project", "user", "pool"]
    date_hierarchy = "day"
