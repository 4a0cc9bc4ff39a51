"""Sites: other clusters to which jobs may leave, and our jobs there."""

from __future__ import annotations

from django.db import transaction
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop
from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.mixins import ListModelMixin, RetrieveModelMixin
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane import changes
from controlplane.accounts.permissions import Permit
from controlplane.api import editing
from controlplane.api.body import BoundedJSON, BoundedMergePatch
from controlplane.api.pagination import WholeList
from controlplane.api.problem import RequestRefused
from controlplane.api.serializers import ReadModelSerializer, ReasonSerializer, StrictSerializer
from controlplane.api.viewsets import WHY, ResourceViewSet
from controlplane.queries import sites
from controlplane.sites import exchange, service
from controlplane.sites import models as rows


class SiteSerializer(ReadModelSerializer):
    class Meta:
        model = sites.Site
        read = sites.shown


class SiteJobSerializer(ReadModelSerializer):
    class Meta:
        model = sites.SiteJob
        read = sites.jobs_shown


class SiteSettingsSerializer(editing.EditSerializer):
    """What people set of a site; its token has an address of its own, and is never shown."""

    class Meta:
        model = rows.Site
        fields = [
            *("name", "url", "fingerprint", "project", "pools", "locations", "price", "patience_s", "gain_s"),
            *("most_jobs", "lost_after_s", "enabled"),
        ]


class SiteTokenSerializer(StrictSerializer):
    """The token that the site gave us."""

    token = serializers.CharField(min_length=8, max_length=500)


class GivenUpSerializer(serializers.Serializer):
    """How many jobs were given up."""

    given_up = serializers.IntegerField()


EXAMPLE = {
    "name": "berlin",
    "url": "https://yard.berlin.example.org",
    "project": "guests",
    "pools": ["default"],
    "locations": ["berlin-1", "berlin-2"],
    "price": 1.5,
}


@extend_schema_view(
    list=extend_schema(description="The sites, what they offer, and how many of our jobs are there."),
    retrieve=extend_schema(description="A site by its name."),
)
class SiteViewSet(ListModelMixin, RetrieveModelMixin, ResourceViewSet):
    """Other clusters to which jobs may leave."""

    scope = "admin"
    _change = (Permit.CHANGE_SITES, gettext_noop("change a site"))
    permits = {
        "show_settings": (Permit.SEE_SITES, gettext_noop("see the settings of sites")),
        "create": (Permit.ADD_SITES, gettext_noop("add a site")),
        "partial_update": _change,
        "set_token": _change,
        "give_up": (Permit.CHANGE_SITES, gettext_noop("give up jobs at a site")),
        "destroy": (Permit.DELETE_SITES, gettext_noop("delete a site")),
    }
    parser_classes = [BoundedJSON, BoundedMergePatch]
    largest_body = 65_536
    noun = gettext_noop("site {name}")
    examples = {"name": "berlin"}
    queryset = rows.Site.objects.select_related("node")
    serializer_class = SiteSerializer
    pagination_class = WholeList

    @extend_schema(
        operation_id="sites_create",
        request=SiteSettingsSerializer,
        responses={201: SiteSerializer},
        examples=[OpenApiExample("Another Switchyard", EXAMPLE, request_only=True)],
    )
    def create(self, request: Request) -> Response:
        """Adds a site, which is asked from now on once it has a token. For operators."""
        with transaction.atomic():
            row = editing.create(SiteSettingsSerializer, request.data)
            try:
                service.stand_in(row)
            except service.SiteNameTaken as error:
                detail = _("a node is called {name}, as the one that stands for this site would be")
                raise RequestRefused(409, "in_use", detail.format(name=error)) from None
        return self._told(row, 201)

    @extend_schema(operation_id="sites_settings", responses=SiteSettingsSerializer)
    @action(detail=True, url_path="settings")
    def show_settings(self, request: Request, name: str) -> Response:
        """What is set of a site; its ETag is what a change needs."""
        return Response(editing.settings_of(self.get_object(), SiteSettingsSerializer))

    @extend_schema(
        operation_id="sites_change",
        request=SiteSettingsSerializer,
        responses={200: SiteSerializer},
        parameters=[editing.IF_MATCH],
        examples=[OpenApiExample("Let no further job leave for it", {"enabled": False}, request_only=True)],
    )
    def partial_update(self, request: Request, name: str) -> Response:
        """Changes a site, with ``If-Match`` of its settings as they were read. Jobs that are at one that is not
        ``enabled`` any more are followed to their end. For operators."""
        return self._told(editing.change(request, self.get_object(), SiteSettingsSerializer))

    @extend_schema(operation_id="sites_delete", parameters=[editing.IF_MATCH], responses={204: None})
    def destroy(self, request: Request, name: str) -> Response:
        """Deletes a site without jobs of ours. For operators."""
        row = self.get_object()
        with transaction.atomic():
            # Whoever lets a job leave locks this row too.
            locked = rows.Site.objects.select_for_update(of=("self",)).filter(pk=row.pk).first()
            if locked is not None and locked.jobs.filter(over_at=None).exists():
                detail = _("jobs of ours are at site {name}: disable it, and delete it once they have ended")
                raise RequestRefused(409, "in_use", detail.format(name=row.name))
            editing.delete(request, row, SiteSettingsSerializer)
            service.forget_stand_in(row)
        changes.announce("fleet")
        return Response(status=204)

    @extend_schema(
        operation_id="sites_set_token",
        request=SiteTokenSerializer,
        responses={200: SiteSerializer},
        examples=[OpenApiExample("A token of the site", {"token": "yard_2f9c_secret"}, request_only=True)],
    )
    @action(detail=True, methods=["put"], url_path="token")
    def set_token(self, request: Request, name: str) -> Response:
        """Sets the token with which a site is asked, of one of its service accounts; it is kept encrypted and never
        shown. For operators."""
        row = self.get_object()
        service.set_token(row, self.body(SiteTokenSerializer)["token"], self.user.get_username())
        return self._told(self.get_object())

    @extend_schema(operation_id="sites_jobs", responses=SiteJobSerializer(many=True))
    @action(detail=True, url_path="jobs")
    def list_jobs(self, request: Request, name: str) -> Response:
        """Our jobs that are, or were, at a site and that you may see, newest first: at most 500."""
        found = sites.jobs_of(self.get_object(), self.user)[: sites.MOST_JOBS]
        return Response({"results": sites.jobs_shown(found, self.user)})

    @extend_schema(
        operation_id="sites_give_up", request=ReasonSerializer, responses={200: GivenUpSerializer}, examples=[WHY]
    )
    @action(detail=True, methods=["post"], url_path="give-up")
    def give_up(self, request: Request, name: str) -> Response:
        """Confirms that nothing of ours runs any more at a site that does not answer: its jobs are queued again here.
        Needs a reason. For operators."""
        reason = self.body(ReasonSerializer)["reason"].strip()[:200]
        row = self.get_object()
        if not row.failures:
            detail = _("site {name} answers: cancel its jobs instead")
            raise RequestRefused(409, "answers", detail.format(name=row.name))
        if not reason:
            detail = _("this needs a reason: others will ask how you know that nothing of it runs")
            raise RequestRefused(422, "invalid", detail)
        count = exchange.confirm_gone(row, self.user.get_username(), reason)
        return Response({"given_up": count})

    def _told(self, row: rows.Site, status: int = 200) -> Response:
        """Tell open pages of a changed site, and answer with it."""
        changes.announce("fleet")
        return self.shown(row, status)
