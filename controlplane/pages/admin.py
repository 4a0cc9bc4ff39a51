"""Quotas in the administration, beside what is in use of them and what there is, which other packages tell."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.http import HttpRequest
from django.utils.translation import gettext, gettext_lazy

from controlplane.accounts.admin import Audited
from controlplane.pools.models import Quota
from controlplane.queries import quotas


class QuotaForm(forms.ModelForm):
    """Tells what each number means."""

    class Meta:
        model = Quota
        fields = [
            "project", "kind", "model", "normalised", "cohort", "nominal", "borrowing_limit", "lending_limit",
        ]  # fmt: skip
        help_texts = {
            "project": gettext_lazy("Whose stages count."),
            "kind": gettext_lazy("A kind of device, such as gpu or npu; of cpu cores are counted."),
            "nominal": gettext_lazy("How many the project may always have. Empty is unlimited, 0 is none of its own."),
            "borrowing_limit": gettext_lazy("How many more it may use of what its cohort leaves unused. Empty is any."),
            "lending_limit": gettext_lazy(
                "How many of its own it lends at most while it does not use them. Empty is all."
            ),
        }


@admin.register(Quota)
class QuotaAdmin(Audited):
    """The quotas of projects by kind and model of device. More than there is may be promised, but not unsaid."""

    form = QuotaForm
    list_display = [
        "project", "kind", "model", "nominal", "used", "borrowing_limit", "lending_limit", "cohort", "normalised",
    ]  # fmt: skip
    list_editable = ["nominal", "borrowing_limit", "lending_limit"]
    list_filter = ["kind", "project"]
    list_select_related = ["project"]

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """The list, each row of which knows how much of it is in use."""
        found = super().get_changelist_instance(request)
        held = quotas.held(list(found.result_list))
        for row in found.result_list:
            row.held = held[row.pk]
        return found

    @admin.display(description=gettext_lazy("Used now"))
    def used(self, row: Any) -> str:
        """How much is in use, in the units of the quota."""
        return f"{row.held:,.4g}"

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Saves it, and says so if all quotas of its sort together promise more than there is."""
        super().save_model(request, obj, form, change)
        promised, present = quotas.promised(obj)
        if obj.nominal is not None and promised > present:
            said = gettext("Quotas of {sort} promise {promised} together, and there are {present}.").format(
                sort=f"{obj.kind} {obj.model}".strip(), promised=f"{promised:,.4g}", present=f"{present:,.4g}"
            )
            self.message_user(request, said, messages.WARNING)
