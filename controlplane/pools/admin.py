"""Pools, budgets, limits and priority classes in the administration."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from controlplane.accounts import audit
from controlplane.accounts.admin import Audited
from controlplane.pools import profiles
from controlplane.pools.models import Budget, Limit, Pool, PriorityClass, Profile, ProfileVersion, profile_names
from controlplane.sentences import in_language


def _choices() -> list[tuple[str, str]]:
    return [(name, name) for name in profile_names()]


class PoolForm(forms.ModelForm):
    """Offers the existing profiles."""

    profile = forms.ChoiceField(choices=_choices)
    shadow_profile = forms.ChoiceField(
        choices=lambda: [("", "–"), *_choices()],
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
            "mounts",
            "default_limit_s",
            "max_limit_s",
            "min_runtime_s",
            "on_node_lost",
            "user_limit",
            "isolation",
            "repartition",
            "measure_links",
            "stopped_by",
            "restricted",
            "allowed_projects",
            "allowed_groups",
        ]

    def clean(self) -> dict[str, Any]:
        """A pool that names projects or groups is restricted; only one without can be opened to everybody."""
        given = super().clean() or {}
        if given.get("allowed_projects") or given.get("allowed_groups"):
            given["restricted"] = True
        return given


@admin.register(Pool)
class PoolAdmin(Audited):
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
        "restricted",
    ]
    search_fields = ["name"]
    filter_horizontal = ["allowed_projects", "allowed_groups"]


class ProfileForm(forms.ModelForm):
    """A profile with its active spec, or that of its newest version; a changed spec becomes a new version."""

    copy_of = forms.ChoiceField(
        choices=lambda: [("", "–"), *_choices()],
        required=False,
        label=_("Copy of"),
        help_text=_("Begins with what this one says, where no spec is given."),
    )
    spec = forms.JSONField(
        required=False,
        widget=forms.Textarea(attrs={"rows": 24, "cols": 100, "class": "vLargeTextField"}),
        help_text=_("Policies with their parameters and weights, and settings. A changed one becomes a new version."),
    )
    note = forms.CharField(max_length=200, required=False, help_text=_("What this version is for."))
    unseen = forms.BooleanField(
        required=False,
        label=_("Switch on unseen"),
        help_text=_("Without a finished preview. A version is previewed on the page of its profile."),
    )

    class Meta:
        model = Profile
        fields = ["name", "description", "active"]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        versions = ProfileVersion.objects.filter(profile=self.instance if self.instance.pk else None)
        self.newest = versions.select_related("profile").first()
        if "active" in self.fields:
            self.fields["active"].queryset = versions  # type: ignore[attr-defined]
            self.fields["active"].required = self.instance.active is not None
        if self.newest and "spec" in self.fields:
            self.fields["spec"].initial = self.newest.spec

    def clean(self) -> dict[str, Any]:
        """Refuses an invalid spec, with the engine's message."""
        given = super().clean() or {}
        spec = given.get("spec")
        if spec is None and given.get("copy_of"):
            spec = given["spec"] = dict(profiles.spec_of(given["copy_of"]))
        if spec is None and "spec" not in self.errors:
            self.add_error("spec", ValidationError(_("Give a spec, or choose one to copy.")))
        elif spec is not None:
            try:
                profiles.check(given.get("name") or self.instance.name, spec)
            except profiles.ProfileInvalid as error:
                self.add_error("spec", in_language(error.args[0]))
        chosen = given.get("active")
        if chosen and chosen != self.instance.active and not given.get("unseen") and not profiles.is_seen(chosen):
            self.add_error("active", ValidationError(_("It was not previewed; preview it, or switch it on unseen.")))
        return given


@admin.register(Profile)
class ProfileAdmin(Audited):
    """Custom profiles. Built-in ones are listed on the dashboard, and can be copied."""

    saves_by_service = deletes_by_service = True
    form = ProfileForm
    list_display = ["name", "active", "description"]
    search_fields = ["name"]

    def get_readonly_fields(self, request: HttpRequest, obj: Profile | None = None) -> list[str]:
        return ["name"] if obj else []

    def get_fields(self, request: HttpRequest, obj: Profile | None = None) -> list[Any]:
        first = ["active", "unseen"] if obj else ["copy_of"]
        return ["name", "description", *first, "spec", "note"]

    def save_model(self, request: HttpRequest, obj: Profile, form: Any, change: bool) -> None:
        """Creates a version if the spec changed, and activates the chosen one."""
        given, by = form.cleaned_data, request.user.get_username()
        if not change:
            made = profiles.create(obj.name, given["spec"], by=by, description=obj.description, note=given["note"])
            obj.pk = made.pk
            return
        if "description" in form.changed_data:
            Profile.objects.filter(pk=obj.pk).update(description=obj.description)
            was, now = {"description": form.initial.get("description")}, {"description": obj.description}
            audit.record("profile.describe", obj, before=was, after=now)
        if form.newest is None or given["spec"] != form.newest.spec:
            version = profiles.revise(obj, given["spec"], by=by, note=given["note"])
            self.message_user(request, _("Version %(n)d is written; it decides nowhere yet.") % {"n": version.number})
        chosen = given["active"]
        if chosen and "active" in form.changed_data:
            profiles.activate(chosen, by=by, unseen=given["unseen"])

    def has_delete_permission(self, request: HttpRequest, obj: Profile | None = None) -> bool:
        return super().has_delete_permission(request, obj) and not (obj and profiles.users().get(obj.name))

    def delete_model(self, request: HttpRequest, obj: Profile) -> None:
        profiles.delete(obj)

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """Without bulk deletion, which would not check whether a pool uses a profile."""
        found = super().get_actions(request)
        found.pop("delete_selected", None)
        return found


@admin.register(Budget)
class BudgetAdmin(Audited):
    """How many device-hours projects may use in a period. What is used is counted anew within a minute."""

    list_display = ["__str__", "project", "kind", "normalised", "period", "hours", "used_hours", "at_end"]
    list_filter = ["at_end", "project"]
    list_select_related = ["project"]


@admin.register(Limit)
class LimitAdmin(Audited):
    """How much one user may have at once."""

    list_display = ["__str__", "user", "project", "pool", "running", "waiting", "devices"]
    list_select_related = ["user", "project", "pool"]


class PriorityClassForm(forms.ModelForm):
    """A class that names projects is for them only; only one without can be opened to all."""

    class Meta:
        model = PriorityClass
        fields = ["name", "value", "preemptible", "staff_only", "projects_only", "allowed_projects"]

    def clean(self) -> dict[str, Any]:
        given = super().clean() or {}
        given["projects_only"] = bool(given.get("projects_only") or given.get("allowed_projects"))
        return given


@admin.register(PriorityClass)
class PriorityClassAdmin(Audited):
    """Named priorities."""

    form = PriorityClassForm
    list_display = ["name", "value", "preemptible", "staff_only", "projects_only"]
    filter_horizontal = ["allowed_projects"]
