"""Refuses uploads while the disk of the control plane is too full for them."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext as _
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from controlplane import storage
from controlplane.api.problem import RequestRefused


class HasRoom(BasePermission):
    """Refuses with 507 requests that would store something; reading is not affected."""

    def has_permission(self, request: Request, view: Any) -> bool:
        if request.method in SAFE_METHODS or not storage.is_full():
            return True
        detail = _("the disk of the control plane is nearly full: nothing can be uploaded until it has room")
        raise RequestRefused(507, "storage_full", detail, retry_s=60)
