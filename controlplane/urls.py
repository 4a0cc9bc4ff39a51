"""All addresses: the API, the pages, the admin, and the agents' ones."""

from django.contrib import admin
from django.urls import include, path
from django.utils.translation import gettext_lazy as _

from controlplane.api.metrics import MetricsView
from controlplane.observability import probes
from controlplane.pages import admin_words, sign_in

admin.site.site_header = "Switchyard"
admin.site.site_title = "Switchyard"
admin.site.index_title = _("Administration")
admin_words.apply(admin.site)

handler400 = "controlplane.wellformed.bad_request_page"

urlpatterns = [
    path("api/v1/", include(("controlplane.api.urls", "v1"))),
    path("healthz", probes.alive),
    path("readyz", probes.ready),
    path("metrics", MetricsView.as_view()),
    path("router/v1/", include("controlplane.services.urls")),
    path("agent/v1/", include("controlplane.dispatch.urls")),
    # The only sign-in by password, with one guard.
    path("admin/login/", sign_in.to_administer),
    path("admin/", admin.site.urls),
    path("", include("controlplane.pages.urls")),
]
