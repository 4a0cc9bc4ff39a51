"""Where each page is."""

from django.urls import path
from django.views.i18n import set_language as choose_language

from controlplane.pages import (
    consolidation,
    decisions,
    device,
    job,
    jobs,
    node,
    nodes,
    otherwise,
    overview,
    profiles,
    sign_in,
    simulations,
    submit,
    timeline,
    user,
)

urlpatterns = [
    path("", overview.show, name="overview"),
    path("jobs", jobs.show, name="jobs"),
    path("jobs/new", submit.show, name="submit"),
    path("jobs/<int:number>", job.show, name="job"),
    path("jobs/<int:number>/log", job.log, name="job-log"),
    path("jobs/<int:number>/otherwise", otherwise.show, name="job-otherwise"),
    path("jobs/new/parse", submit.parse, name="submit-parse"),
    path("devices/<path:uuid>", device.show, name="device"),
    path("timeline", timeline.show, name="timeline"),
    path("nodes", nodes.show, name="nodes"),
    path("nodes/<slug:name>", node.show, name="node"),
    path("decisions", decisions.show, name="decisions"),
    path("decisions/<int:number>", decisions.one, name="decision"),
    path("consolidation", consolidation.show, name="consolidation"),
    path("profiles", profiles.show, name="profiles"),
    path("profiles/<slug:name>", profiles.one, name="profile"),
    path("simulations", simulations.show, name="simulations"),
    path("simulations/<int:number>", simulations.one, name="simulation"),
    path("sign-in", sign_in.by_password, name="sign-in"),
    path("sign-in/<str:secret>", sign_in.by_link, name="sign-in-link"),
    path("sign-out", sign_in.out, name="sign-out"),
    path("user", user.show, name="user"),
    path("user/tokens", user.make_token, name="user-make-token"),
    path("user/tokens/<uuid:token>/revoke", user.revoke_token, name="user-revoke-token"),
    path("user/password", user.change_password, name="user-password"),
    path("user/sign-out-everywhere", user.sign_out_everywhere, name="user-sign-out"),
    path("language", choose_language, name="language"),
]
