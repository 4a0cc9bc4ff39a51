"""Sessions: the ports of all jobs that can be opened in a browser."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.viewsets import SingleViewSet
from controlplane.queries import web_ports


class SessionViewSet(SingleViewSet):
    """Stages that people use in a browser, such as notebooks."""

    @extend_schema(operation_id="sessions_list", responses=web_ports.WebPortList)
    def retrieve(self, request: Request) -> Response:
        """The named ports of all stages that have not ended, of the jobs that you may see, the newest jobs first; at
        most 200. Open one by ``POST /jobs/{name}/ports``."""
        return Response(web_ports.of_user(self.user))
