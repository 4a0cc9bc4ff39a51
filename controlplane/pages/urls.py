"""The addresses of all pages."""

from allauth.account import views as account
from allauth.mfa.base import views as mfa
from allauth.mfa.recovery_codes import views as recovery_codes
from allauth.mfa.totp import views as totp
from allauth.socialaccount import views as social
from allauth.socialaccount.providers.openid_connect import views as openid
from django.db.transaction import atomic
from django.urls import path, re_path
from django.views.decorators.http import conditional_page
from django.views.generic import RedirectView
from django.views.i18n import JavaScriptCatalog
from django.views.i18n import set_language as choose_language

from controlplane.pages import (
    address,
    array,
    audit,
    calendar,
    calendar_entry,
    consolidation,
    decisions,
    device,
    device_login,
    documentation,
    functions,
    hardware,
    health,
    job,
    jobs,
    node,
    nodes,
    operations,
    otherwise,
    overview,
    password_reset,
    profiles,
    providers,
    queue,
    quota,
    retention,
    schedules,
    search,
    secrets,
    service_accounts,
    services,
    sessions,
    sign_in,
    simulations,
    sites,
    submit,
    templates,
    timeline,
    topology,
    trace,
    usage,
    user,
    webhooks,
)

urlpatterns = [
    path("", overview.show, name="overview"),
    path("overview/<slug:name>", overview.updates, name="overview-updates"),
    path("queue", queue.show, name="queue"),
    path("jobs", jobs.show, name="jobs"),
    path("jobs/new", submit.show, name="submit"),
    path("jobs/<int:number>", job.show, name="job"),
    path("jobs/<int:number>_<int:index>", array.element, name="element"),
    path("arrays/<int:number>", array.show, name="array"),
    *(path(f"jobs/<int:number>/{tab}", job.show, {"tab": tab}, name=f"job-{tab}") for tab in job.TABS[1:]),
    path("jobs/<int:number>/trace", trace.ask, name="job-trace"),
    path("jobs/<int:number>/log", job.log, name="job-log"),
    path("jobs/<int:number>/otherwise", otherwise.show, name="job-otherwise"),
    path("jobs/new/parse", submit.parse, name="submit-parse"),
    path("devices/<path:uuid>", device.show, name="device"),
    path("timeline", timeline.show, name="timeline"),
    path("usage", usage.show, name="usage"),
    path("quota", quota.show, name="quota"),
    path("quota.csv", quota.table, name="quota-csv"),
    path("nodes", nodes.show, name="nodes"),
    path("nodes/<slug:name>", node.show, name="node"),
    path("topology", topology.show, name="topology"),
    path("search", search.show, name="search"),
    path("hardware", hardware.show, name="hardware"),
    path("decisions", decisions.show, name="decisions"),
    path("decisions/<int:number>", decisions.one, name="decision"),
    path("audit", audit.show, name="audit"),
    path("health", health.show, name="health"),
    path("retention", retention.show, name="retention"),
    path("consolidation", consolidation.show, name="consolidation"),
    path("docs", RedirectView.as_view(url="/docs/"), name="documentation"),
    path("docs/", documentation.show, name="documentation-index"),
    path("docs/<path:name>", documentation.show, name="documentation-file"),
    path("operations", operations.show, name="operations"),
    path("operations/<int:number>", operations.one, name="operation"),
    path("profiles", profiles.show, name="profiles"),
    path("profiles/<slug:name>", profiles.one, name="profile"),
    path("providers", providers.show, name="providers"),
    path("sites", sites.show, name="sites"),
    path("schedules", schedules.show, name="schedules"),
    path("schedules/new", schedules.make, name="schedules-make"),
    path("schedules/times", schedules.times, name="schedules-times"),
    path("schedules/<int:number>/change", schedules.change, name="schedule-change"),
    path("schedules/<int:number>", schedules.one, name="schedule"),
    *(
        path(f"schedules/<int:number>/{verb}", schedules.act, {"verb": verb}, name=f"schedule-{verb}")
        for verb in ("pause", "resume", "run", "delete")
    ),
    path("sessions", sessions.show, name="sessions"),
    path("jobs/<int:number>/open", sessions.open_port, name="job-open-port"),
    path("services", services.show, name="services"),
    path("services/<int:number>", services.one, name="service"),
    *(
        path(f"services/<int:number>/{verb}", services.act, {"verb": verb}, name=f"service-{verb}")
        for verb in ("scale", "rollback", "delete")
    ),
    path("functions", functions.show, name="functions"),
    path("functions/<int:number>", functions.one, name="function"),
    path("functions/<int:number>/delete", functions.delete, name="function-delete"),
    path("functions/<int:number>/calls/<int:call>/retry", functions.retry, name="function-retry"),
    path("templates", templates.show, name="templates"),
    path("templates/<slug:name>", templates.one, name="template"),
    path("calendar", calendar.show, name="calendar"),
    *(
        path(f"calendar/new/{kind}", calendar_entry.new, {"kind": kind}, name=f"calendar-new-{kind}")
        for kind in ("maintenance", "reservation")
    ),
    *(
        path(f"calendar/{place}{tail}", view, {"kind": kind}, name=f"calendar-{kind}{tail}")
        for kind, place in (("maintenance", "maintenance/<int:key>"), ("reservation", "reservations/<slug:key>"))
        for tail, view in (("", calendar_entry.one), ("/change", calendar_entry.change), ("/end", calendar_entry.end))
    ),
    path("secrets", secrets.show, name="secrets"),
    path("secrets/set", secrets.put, name="secrets-set"),
    path("secrets/delete", secrets.delete, name="secrets-delete"),
    path("webhooks", webhooks.show, name="webhooks"),
    path("webhooks/add", webhooks.add, name="webhooks-add"),
    path("webhooks/<slug:project>/<slug:name>", webhooks.one, name="webhook"),
    *(
        path(f"webhooks/<slug:project>/<slug:name>/{verb}", webhooks.act, {"verb": verb}, name=f"webhook-{verb}")
        for verb in ("change", "on", "off", "test", "delete")
    ),
    path("webhooks/<slug:project>/<slug:name>/deliveries/<uuid:event>/resend", webhooks.resend, name="webhook-resend"),
    path("simulations", simulations.show, name="simulations"),
    path("simulations/<int:number>", simulations.one, name="simulation"),
    # allauth finds its pages by these names. Its other pages are deliberately left out.
    path("sign-in", sign_in.SignIn.as_view(), name="account_login"),
    path("sign-in/code", sign_in.SecondFactor.as_view(), name="mfa_authenticate"),
    path("sign-in/again", account.reauthenticate, name="account_reauthenticate"),
    path("sign-in/again/code", mfa.reauthenticate, name="mfa_reauthenticate"),
    path("sign-in/inactive", account.account_inactive, name="account_inactive"),
    path("sign-in/cancelled", social.login_cancelled, name="socialaccount_login_cancelled"),
    path("sign-in/failed", social.login_error, name="socialaccount_login_error"),
    path("sign-in/with/<str:provider_id>", sign_in.by_provider, name="openid_connect_login"),
    path("sign-in/with/<str:provider_id>/callback", openid.callback, name="openid_connect_callback"),
    path("service-accounts", service_accounts.show, name="service-accounts"),
    path("service-accounts/create", service_accounts.create, name="service-accounts-create"),
    path("service-accounts/<str:name>", service_accounts.one, name="service-account"),
    path("service-accounts/<str:name>/change", service_accounts.change, name="service-account-change"),
    path("service-accounts/<str:name>/delete", service_accounts.delete, name="service-account-delete"),
    path("service-accounts/<str:name>/tokens", service_accounts.make_token, name="service-account-tokens"),
    path(
        "service-accounts/<str:name>/tokens/<uuid:token>/revoke",
        service_accounts.revoke_token,
        name="service-account-revoke",
    ),
    path("sign-in/<str:secret>", sign_in.by_link, name="sign-in-link"),
    path("sign-out", sign_in.out, name="account_logout"),
    path("password-reset", password_reset.ResetRequest.as_view(), name="account_reset_password"),
    path("password-reset/sent", password_reset.ResetSent.as_view(), name="account_reset_password_done"),
    path("password-reset/done", password_reset.ResetDone.as_view(), name="account_reset_password_from_key_done"),
    re_path(
        r"^password-reset/(?P<uidb36>[0-9A-Za-z]{1,13})-(?P<key>[0-9A-Za-z-]{1,200})$",
        password_reset.ResetFromLink.as_view(),
        name="account_reset_password_from_key",
    ),
    path("device", device_login.show, name="device-login"),
    path("user", user.show, name="user"),
    path("user/second-factor", RedirectView.as_view(url="/user"), name="mfa_index"),
    path("user/second-factor/new", totp.activate_totp, name="mfa_activate_totp"),
    path("user/second-factor/remove", atomic(totp.deactivate_totp), name="mfa_deactivate_totp"),
    path("user/recovery-codes", recovery_codes.view_recovery_codes, name="mfa_view_recovery_codes"),
    path("user/recovery-codes/new", recovery_codes.generate_recovery_codes, name="mfa_generate_recovery_codes"),
    path("user/recovery-codes/file", recovery_codes.download_recovery_codes, name="mfa_download_recovery_codes"),
    path("user/address", address.ask, name="account_email"),
    path("user/address/<str:key>", address.Confirm.as_view(), name="account_confirm_email"),
    path("user/notices", user.choose_notices, name="user-notices"),
    path("user/accounts", user.Accounts.as_view(), name="socialaccount_connections"),
    path("user/sessions/<int:number>/end", user.end_session, name="user-end-session"),
    path("user/checklist", user.dismiss_checklist, name="user-checklist"),
    path("user/theme", user.choose_theme, name="user-theme"),
    path("user/time-zone", user.choose_time_zone, name="user-time-zone"),
    path("user/tokens", user.make_token, name="user-make-token"),
    path("user/tokens/<uuid:token>/revoke", user.revoke_token, name="user-revoke-token"),
    path("user/password", user.change_password, name="user-password"),
    path("user/sign-out-everywhere", user.sign_out_everywhere, name="user-sign-out"),
    path("language", choose_language, name="language"),
    # The texts of scripts in the reader's language, from djangojs.po.
    path(
        "words.js",
        conditional_page(JavaScriptCatalog.as_view(packages=["controlplane.pages"])),
        name="javascript-catalog",
    ),
]
