"""Nodes, devices and join tokens in the admin. States and reported facts are shown but not editable."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from controlplane.accounts.admin import Audited, asker
from controlplane.accounts.permissions import Permit, may
from controlplane.accounts.service import digest
from controlplane.clauses import clause, told
from controlplane.fleet import maintenance, reservations, service
from controlplane.fleet.models import Device, JoinToken, MaintenanceWindow, Node, Reservation
from controlplane.pools.models import Pool
from scheduler.core.model.lifecycle import NodeState


@admin.register(Node)
class NodeAdmin(Audited):
    """Nodes: pool membership is editable, everything else comes from the agent."""

    list_display = ["name", "state", "reason", "simulated", "agent_version", "last_report_at"]
    list_filter = ["state", "simulated", "pools"]
    search_fields = ["name", "hostname"]
    filter_horizontal = ["pools"]
    fields = [
        "name", "pools", "labels", "state", "reason", "simulated", "address", "hostname", "os", "arch", "memory_bytes",
        "runs_as", "isolation", "agent_version", "last_report_at", "conditions", "generation", "seen_generation",
        "created_at",
    ]  # fmt: skip
    readonly_fields = [str(name) for name in fields if name not in ("pools", "labels")]
    actions = ["drain", "resume", "make_return_token", "rotate", "revoke"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_operate_permission(self, request: HttpRequest) -> bool:
        return may(asker(request), Permit.OPERATE_NODES)

    def has_delete_permission(self, request: HttpRequest, obj: Node | None = None) -> bool:
        gone = obj is not None and obj.state in {NodeState.LOST, NodeState.DRAINED, NodeState.JOINING}
        return gone and super().has_delete_permission(request, obj)

    @admin.action(description=_("Drain: let what runs finish, place nothing new"), permissions=["operate"])
    def drain(self, request: HttpRequest, chosen: QuerySet[Node]) -> None:
        """Drains the chosen nodes."""
        why = told(clause("InAdministration"))
        for node in chosen:
            self._do(request, node, lambda n=node: service.drain(n, str(request.user), why))

    @admin.action(description=_("Resume: give work again"), permissions=["operate"])
    def resume(self, request: HttpRequest, chosen: QuerySet[Node]) -> None:
        """Resumes the chosen nodes."""
        for node in chosen:
            self._do(request, node, lambda n=node: service.resume(n, str(request.user)))

    @admin.action(
        description=_("Make a join token for this node (one that was installed anew)"), permissions=["operate"]
    )
    def make_return_token(self, request: HttpRequest, chosen: QuerySet[Node]) -> None:
        """Shows once a secret with which the chosen node may join again."""
        for node in chosen:
            secret = service.make_return_token(node)
            self.log_change(request, node, "join token made")
            said = _("The join token of %(node)s, shown this once: %(secret)s")
            self.message_user(request, said % {"node": node.name, "secret": secret}, messages.WARNING)

    @admin.action(description=_("Give its agent a new credential through its link"), permissions=["operate"])
    def rotate(self, request: HttpRequest, chosen: QuerySet[Node]) -> None:
        """Has the agents of the chosen nodes get new credentials."""
        for node in chosen:
            self._do(request, node, partial(service.rotate, node, request.user.get_username()))

    @admin.action(description=_("Revoke the credential: refuse its agent from now on"), permissions=["operate"])
    def revoke(self, request: HttpRequest, chosen: QuerySet[Node]) -> None:
        """Revokes the credentials of the chosen nodes."""
        for node in chosen:
            service.revoke(node)
            self.log_change(request, node, "credential revoked")
            said = _("%(node)s is refused from now on; it joins again with a token made for it.")
            self.message_user(request, said % {"node": node.name}, messages.SUCCESS)

    def _do(self, request: HttpRequest, node: Node, act: Any) -> None:
        try:
            changed = act()
        except service.NodeRefused as error:
            self.message_user(request, str(error), messages.ERROR)
        else:
            self.log_change(request, node, f"{changed.state}")
            self.message_user(request, f"{changed.name}: {changed.state}", messages.SUCCESS)


@admin.register(Device)
class DeviceAdmin(Audited):
    """Devices: the allocation mode is editable."""

    list_display = [
        "__str__",
        "uuid",
        "vendor",
        "model",
        "mode",
        "health",
        "claimed_milli",
        "capacity_milli",
        "present",
    ]
    list_filter = ["kind", "health", "mode", "present", "simulated"]
    list_select_related = ["node"]
    search_fields = ["uuid", "model", "node__name"]
    fields = [
        "node", "uuid", "kind", "vendor", "model", "index", "mode", "memory_bytes", "capacity_milli", "claimed_milli",
        "claimed_memory_bytes", "numa", "simulated", "health", "health_reason", "present", "features", "attributes",
        "links",
    ]  # fmt: skip
    readonly_fields = [str(name) for name in fields if name != "mode"]
    actions = ["cordon", "uncordon"]

    def has_operate_permission(self, request: HttpRequest) -> bool:
        return may(asker(request), Permit.OPERATE_DEVICES)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Device | None = None) -> bool:
        return False

    @admin.action(description=_("Cordon: place nothing new on it"), permissions=["operate"])
    def cordon(self, request: HttpRequest, chosen: QuerySet[Device]) -> None:
        """Takes the chosen devices out of service."""
        why = told(clause("InAdministration"))
        for device in chosen:
            self._do(request, device, lambda d=device: service.cordon(d, str(request.user), why))

    @admin.action(description=_("Uncordon: put it back in service"), permissions=["operate"])
    def uncordon(self, request: HttpRequest, chosen: QuerySet[Device]) -> None:
        """Puts the chosen devices back in service."""
        for device in chosen:
            self._do(request, device, lambda d=device: service.uncordon(d, str(request.user)))

    def _do(self, request: HttpRequest, device: Device, act: Any) -> None:
        try:
            act()
        except service.NodeRefused as error:
            self.message_user(request, str(error), messages.ERROR)
        else:
            device.refresh_from_db()
            self.log_change(request, device, device.health)
            self.message_user(request, f"{device}: {device.health}", messages.SUCCESS)

    def save_model(self, request: HttpRequest, obj: Device, form: Any, change: bool) -> None:
        """Writes the mode alone, because claims change concurrently."""
        obj.save(update_fields=["mode"])


class MaintenanceForm(forms.ModelForm):
    """The time and reason of a maintenance window of a node or pool."""

    class Meta:
        model = MaintenanceWindow
        fields = ["node", "pool", "starts_at", "ends_at", "cron", "time_zone", "lasts_s", "reason"]

    def clean(self) -> dict[str, Any]:
        """Refuses an invalid window, at the invalid field."""
        chosen = super().clean() or {}
        if not self.errors:
            fault = maintenance.fault(MaintenanceWindow(**{name: chosen.get(name) for name in self.Meta.fields}))
            if fault is not None:
                self.add_error(*fault)
        return chosen


@admin.register(MaintenanceWindow)
class MaintenanceAdmin(Audited):
    """Maintenance windows: planned and cancelled here, never deleted."""

    saves_by_service = True

    form = MaintenanceForm
    list_display = ["of", "starts_at", "ends_at", "reason", "made_by", "cancelled_by"]
    list_filter = ["pool"]
    list_select_related = ["node", "pool"]
    search_fields = ["node__name", "reason"]
    actions = ["call_off"]

    def has_change_permission(self, request: HttpRequest, obj: MaintenanceWindow | None = None) -> bool:
        return obj is None and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: MaintenanceWindow | None = None) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: MaintenanceWindow, form: Any, change: bool) -> None:
        """Plans the window in the name of the user who sent the form."""
        planned = maintenance.plan(**form.cleaned_data, actor=request.user.get_username())
        obj.__dict__.update(planned.__dict__)

    @admin.action(description=_("Cancel: what was planned, and what has begun"), permissions=["change"])
    def call_off(self, request: HttpRequest, chosen: QuerySet[MaintenanceWindow]) -> None:
        """Cancels the chosen windows."""
        for window in chosen:
            try:
                maintenance.cancel(window, request.user.get_username())
            except service.NodeRefused as error:
                self.message_user(request, str(error), messages.ERROR)
            else:
                self.log_change(request, window, "cancelled")


@admin.register(Reservation)
class ReservationAdmin(Audited):
    """Reservations: shown and cancelled here, planned by ``yard reserve`` and over REST."""

    saves_by_service = True

    list_display = ["name", "project", "starts_at", "ends_at", "cron", "reason", "made_by", "cancelled_by"]
    list_filter = ["project"]
    list_select_related = ["project"]
    search_fields = ["name", "reason"]
    actions = ["call_off"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Reservation | None = None) -> bool:
        return obj is None and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Reservation | None = None) -> bool:
        return False

    @admin.action(description=_("Cancel: what was planned, and what has begun"), permissions=["change"])
    def call_off(self, request: HttpRequest, chosen: QuerySet[Reservation]) -> None:
        """Cancels the chosen reservations."""
        for reservation in chosen:
            try:
                reservations.cancel(reservation, request.user.get_username())
            except service.NodeRefused as error:
                self.message_user(request, str(error), messages.ERROR)
            else:
                self.log_change(request, reservation, "cancelled")


class JoinTokenForm(forms.ModelForm):
    """The pool of a join token, and how many nodes may use it for how long."""

    pool = forms.ModelChoiceField(Pool.objects.all())
    hours = forms.FloatField(min_value=0.1, max_value=24 * 30, initial=1, label=_("Valid for hours"))

    class Meta:
        model = JoinToken
        fields = ["pool", "uses_left"]


@admin.register(JoinToken)
class JoinTokenAdmin(Audited):
    """Join tokens: created here, shown once, revoked by deleting them."""

    saves_by_service = True
    form = JoinTokenForm
    list_display = ["__str__", "pool", "node", "uses_left", "expires_at", "created_at"]
    list_select_related = ["pool", "node"]
    fields = ["pool", "uses_left", "hours"]

    def has_change_permission(self, request: HttpRequest, obj: JoinToken | None = None) -> bool:
        return False

    def get_fields(self, request: HttpRequest, obj: JoinToken | None = None) -> Any:
        return (
            ["pool", "uses_left", "hours"] if obj is None else ["pool", "node", "uses_left", "expires_at", "created_at"]
        )

    def save_model(self, request: HttpRequest, obj: JoinToken, form: Any, change: bool) -> None:
        """Creates the token and shows its secret, which is stored only as a digest."""
        chosen = form.cleaned_data
        secret = service.make_join_token(
            chosen["pool"], uses=chosen["uses_left"], life=timedelta(hours=chosen["hours"])
        )
        made = JoinToken.objects.get(digest=digest(secret))
        obj.__dict__.update(made.__dict__)
        self.message_user(
            request, _("The join token, shown this once: %(secret)s") % {"secret": secret}, messages.WARNING
        )
