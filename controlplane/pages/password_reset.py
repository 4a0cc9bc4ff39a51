"""Resetting a forgotten password, by a link that is sent by mail. Without a mail server these pages do not exist."""

from __future__ import annotations

from typing import Any, cast

from allauth.account import views as account
from allauth.account.forms import default_token_generator
from django.conf import settings
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from controlplane.accounts import audit, service
from controlplane.accounts.models import User


class ByMail:
    """A page that exists only if mail is configured, and whose attempts are limited in Redis."""

    @method_decorator([never_cache, sensitive_post_parameters("password1", "password2")])
    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not settings.EMAIL_HOST:
            raise Http404(_("Passwords are not reset by mail here: this server has no mail server."))
        try:
            answer: HttpResponseBase = super().dispatch(request, *args, **kwargs)  # type: ignore[misc]
        except (RedisError, OperationalError):
            said = _("Passwords cannot be reset just now, because Redis does not answer. Try again in a moment.")
            return render(request, "account/password_reset.html", {"said": said}, status=503)
        return answer


class ResetRequest(ByMail, account.PasswordResetView):
    """Takes the address to send the link to. The answer is the same for every address."""


class ResetSent(ByMail, account.PasswordResetDoneView):
    """Tells that the link is on its way, if the address belongs to a user."""


class ResetFromLink(ByMail, account.PasswordResetFromKeyView):
    """Takes the new password. Opening the link changes nothing, and the link works once."""

    def form_valid(self, form: Any) -> HttpResponse:
        with transaction.atomic():
            user = User.objects.select_for_update().get(pk=self.reset_user.pk)
            # If two are sent at once, the other one has used the link by now.
            if not default_token_generator.check_token(user, self.key):
                return cast(HttpResponse, self.render_to_response(self.get_context_data(token_fail=True)))
            # Nobody is signed in: the holder of the link acts as its user.
            with audit.acting(audit.Origin(user.get_username(), audit.Via.PAGE, user.pk, "password reset link")):
                answer: HttpResponse = super().form_valid(form)
                service.end_sessions(user)
        return answer


class ResetDone(ByMail, account.PasswordResetFromKeyDoneView):
    """Tells that the new password is set."""
