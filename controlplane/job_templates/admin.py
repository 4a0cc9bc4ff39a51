"""Templates that people made, in the administration. What is saved passes the same checks as over REST."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest

from controlplane.accounts.models import User
from controlplane.accounts.permissions import Permit, may
from controlplane.job_templates import service
from controlplane.job_templates.models import JobTemplate


class JobTemplateForm(forms.ModelForm):
    """The fields of a template; ``user`` is who saves it, and the faults of its job file are told beside it."""

    user: User
    parameters = forms.JSONField(required=False, initial=list)
    job = forms.JSONField()

    class Meta:
        model = JobTemplate
        fields = ["name", "project", "title", "description", "parameters", "job"]

    def clean_parameters(self) -> list[Any]:
        return self.cleaned_data["parameters"] or []

    def clean(self) -> dict[str, Any]:
        given = dict(super().clean() or {})
        if not self.errors:
            name = given.get("name") or self.instance.name
            project = given.get("project", self.instance.project)
            try:
                service.check(self.user, project, name, given["parameters"], given["job"])
            except service.TemplateRefused as refused:
                for each in refused.errors:
                    _nothing, field, *_rest = each.pointer.split("/")
                    self.add_error(field if field in self.fields else None, f"{each.pointer}: {each.detail}")
        return given


@admin.register(JobTemplate)
class JobTemplateAdmin(admin.ModelAdmin):
    """Templates of projects and of everybody; those that are part of Switchyard are files and not here."""

    form = JobTemplateForm
    list_display = ["name", "project", "title", "made_by", "changed_at"]
    list_filter = ["project"]
    list_select_related = ["project"]
    search_fields = ["name", "title", "project__name"]

    def get_readonly_fields(self, request: HttpRequest, obj: JobTemplate | None = None) -> list[str]:
        return ["name", "project"] if obj is not None else []

    def get_form(self, request: HttpRequest, obj: JobTemplate | None = None, change: bool = False, **more: Any) -> Any:
        made = super().get_form(request, obj, change, **more)
        return type(made.__name__, (made,), {"user": request.user})

    def save_model(self, request: HttpRequest, obj: JobTemplate, form: forms.ModelForm, change: bool) -> None:
        """Save by the service, which is the only writer and notes it in the audit log."""
        fields = {name: getattr(obj, name) for name in ("title", "description", "parameters", "job")}
        service.put(self._user(request), obj.project, obj.name, **fields)
        obj.pk = JobTemplate.objects.get(project=obj.project, name=obj.name).pk

    def delete_model(self, request: HttpRequest, obj: JobTemplate) -> None:
        service.delete(obj.project, obj.name)

    def delete_queryset(self, request: HttpRequest, queryset: Any) -> None:
        for row in queryset:
            service.delete(row.project, row.name)

    def _may(self, request: HttpRequest, obj: JobTemplate | None = None) -> bool:
        return may(self._user(request), Permit.CHANGE_TEMPLATES)

    has_view_permission = has_add_permission = has_change_permission = has_delete_permission = _may

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self._may(request)

    def _user(self, request: HttpRequest) -> User:
        assert isinstance(request.user, User)
        return request.user
