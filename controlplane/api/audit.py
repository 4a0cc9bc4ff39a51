"""The audit log: who changed what and how, with the values before and after."""

from __future__ import annotations

from django.utils.translation import gettext_noop
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework.mixins import ListModelMixin

from controlplane.accounts import models as rows
from controlplane.accounts.permissions import Permit
from controlplane.api.serializers import ReadModelSerializer
from controlplane.api.viewsets import ResourceViewSet
from controlplane.queries import audit


class AuditEntrySerializer(ReadModelSerializer):
    class Meta:
        model = audit.AuditEntry
        read = audit.shown


@extend_schema_view(
    list=extend_schema(description="Who changed what, newest first. It needs the permission to read the audit log.")
)
class AuditViewSet(ListModelMixin, ResourceViewSet):
    """The audit log."""

    permits = {"list": (Permit.SEE_AUDIT, gettext_noop("read the audit log"))}
    queryset = rows.AuditEntry.objects.all()
    filterset_class = audit.AuditFilter
    ordering = "-id"
    serializer_class = AuditEntrySerializer
