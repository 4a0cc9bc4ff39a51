"""The user's e-mail address: entered on their page, and confirmed by a link that is sent there."""

from __future__ import annotations

from smtplib import SMTPException
from typing import Any

from allauth.account import views as account
from allauth.account.decorators import reauthentication_required
from allauth.account.models import EmailAddress
from allauth.core.ratelimit import consume
from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods
from redis.exceptions import RedisError

from controlplane.accounts.forms import AddressForm
from controlplane.accounts.models import User
from controlplane.pages.shell import reader
from controlplane.pages.user import user_page


def _require_mail() -> None:
    if not settings.EMAIL_HOST:
        raise Http404(_("This server sends no mail."))


@login_required
@never_cache
@require_http_methods(["GET", "POST"])
@reauthentication_required(allow_get=True)  # type: ignore[untyped-decorator]
def ask(request: HttpRequest) -> HttpResponse:
    """Sends a confirmation link to the address. Nothing else changes until the link is followed."""
    _require_mail()
    if request.method == "GET":  # where somebody lands who confirmed that it is them
        return redirect("/user")
    user = reader(request)
    form = AddressForm(data=request.POST, user=user)
    if not form.is_valid():
        return user_page(request, 422, address_faults=form.errors.get("email", []), asked_address=_asked(request))
    try:
        if not consume(request, action="manage_email", user=user):
            fault = _("You have tried too many addresses. Wait an hour, and try again.")
            return user_page(request, 429, address_faults=[fault])
        with transaction.atomic():
            EmailAddress.objects.filter(user=user, verified=False).delete()
            address = EmailAddress.objects.create(user=user, email=form.cleaned_data["email"])
    except RedisError:
        fault = _("Addresses cannot be changed just now, because Redis does not answer. Try again in a moment.")
        return user_page(request, 503, address_faults=[fault])
    try:
        address.send_confirmation(request)
    except (OSError, SMTPException):
        address.delete()
        fault = _("The mail server does not take mail for this address just now. Try again later.")
        return user_page(request, 503, address_faults=[fault], asked_address=_asked(request))
    return redirect("/user?done=address-asked")


def _asked(request: HttpRequest) -> str:
    return request.POST.get("email", "")[:254]


@method_decorator([login_required, never_cache], name="dispatch")
class Confirm(account.ConfirmEmailView):
    """The target of the link: a button that confirms the address for the user who asked for it."""

    template_name = "account/email_confirm.html"

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        _require_mail()
        return super().dispatch(request, *args, **kwargs)

    def get_object(self, queryset: Any = None) -> Any:
        """The address to confirm. Raises Http404 for an expired link, or another user's."""
        found = super().get_object(queryset)
        if found.email_address.user_id != self.request.user.pk:
            raise Http404
        return found

    def post(self, *args: Any, **kwargs: Any) -> HttpResponse:
        """Makes it the user's only address, with its audit entry in the same transaction."""
        try:
            with transaction.atomic():
                User.objects.select_for_update().get(pk=self.request.user.pk)
                address = self.get_object().confirm(self.request)
        except Http404:
            address = None
        if address is None:
            self.object = None
            return self.render_to_response(self.get_context_data(), status=410)
        return redirect("/user?done=address")
