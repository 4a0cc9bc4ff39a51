"""Pools, quotas and priority classes in the administration."""

from __future__ import annotations

from django import forms
from django.contrib import admin

from controlplane.pools.models import Pool, PriorityClass, Quota
from scheduler.profiles import PROFILES


class PoolForm(forms.ModelForm):
    """Offers the profiles that there are."""

    profile = forms.ChoiceField(choices=[(name, name) for name in PROFILES])
    shadow_profile = forms.ChoiceField(
        choices=[("", "–"), *((name, name) for name in PROFILES)],
        required=False,
        help_text=Pool._meta.get_field("shadow_profile").help_text,
    )

    class Meta:
        model = Pool
        fields = [
            "name",
            "profile",
            "shadow_profile",
            "storage_path",
            "default_limit_s",
            "max_limit_s",
            "min_runtime_s",
            "on_node_lost",
            "user_limit",
            "repartition",
            "stopped_by",
        ]


@admin.register(Pool)
class PoolAdmin(admin.ModelAdmin):
    """Pools and their limits."""

    form = PoolForm
    list_display = [
        "name",
        "profile",
        "shadow_profile",
        "storage_path",
        "default_limit_s",
        "max_limit_s",
        "min_runtime_s",
        "stopped_by",
    ]
    search_fields = ["name"]


@admin.register(Quota)
class QuotaAdmin(admin.ModelAdmin):
    """What each project may hold of each kind and model of device."""

    list_display = ["project", "kind", "model", "normalised", "cohort", "nominal", "borrowing_limit", "lending_limit"]
    list_editable = ["nominal", "borrowing_limit", "lending_limit"]
    list_filter = ["kind", "project"]
    list_select_related = ["project"]


@admin.register(PriorityClass)
class PriorityClassAdmin(admin.ModelAdmin):
    """Names for how urgent a job is."""

    list_display = ["name", "value", "preemptible", "staff_only"]
