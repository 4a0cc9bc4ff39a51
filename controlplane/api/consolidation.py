"""Consolidation: moves of running stages that would make room for a stage that fits nowhere, with their price.

Advice only: a move is made when a person accepts it.
"""

from __future__ import annotations

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop
from drf_spectacular.utils import OpenApiExample, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts.permissions import Permit
from controlplane.api.problem import RequestRefused
from controlplane.api.serializers import StrictSerializer
from controlplane.api.viewsets import SingleViewSet
from controlplane.queries import consolidation
from controlplane.whatif.consolidation import follow


class FollowedSerializer(StrictSerializer):
    """The advice to follow, by the id of the stage that it is for."""

    stage = serializers.CharField()


class ConsolidationViewSet(SingleViewSet):
    """Advice on moves of running stages."""

    scope = "admin"
    permits = {
        "retrieve": (Permit.SEE_DECISIONS, gettext_noop("ask what could be moved")),
        "create": (Permit.MOVE_ATTEMPTS, gettext_noop("ask what could be moved")),
    }

    @extend_schema(responses=consolidation.Consolidation)
    def retrieve(self, request: Request) -> Response:
        """Advice for stages at the head of the queue that fit nowhere although enough is free in total: the stages that
        would move, and the price. Changes nothing. Only staff."""
        return Response(consolidation.advised(self.user))

    @extend_schema(
        operation_id="consolidation_follow",
        request=FollowedSerializer,
        responses={200: consolidation.ConsolidationAdvice},
        examples=[OpenApiExample("One", {"stage": "00000000-0000-4000-8000-000000000000"}, request_only=True)],
    )
    def create(self, request: Request) -> Response:
        """Follows one advice: the stages to move stop with a checkpoint and resume elsewhere. Only staff."""
        done = follow(self.body(FollowedSerializer)["stage"], self.user)
        if done is None:
            raise RequestRefused(
                409, "advice_gone", _("there is no such advice now: the world has moved on; ask for it anew")
            )
        return Response(consolidation.shown(*done))
