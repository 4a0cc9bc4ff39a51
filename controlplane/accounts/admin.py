"""Users, projects and access tokens in the administration."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from allauth.account.models import EmailAddress
from allauth.mfa.models import Authenticator
from allauth.socialaccount.models import SocialAccount, SocialApp, SocialToken
from allauth.usersessions.models import UserSession
from django import forms
from django.contrib import admin, messages
from django.contrib.auth.admin import UserAdmin as BaseUserAdmin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from controlplane.accounts import service
from controlplane.accounts.models import Member, Project, Token, User


@admin.register(User)
class UserAdmin(BaseUserAdmin):
    """People and service accounts."""

    fieldsets = (*(BaseUserAdmin.fieldsets or ()), (_("Switchyard"), {"fields": ("default_project", "theme")}))
    actions = ["make_sign_in_link"]

    @admin.action(description=_("Make a sign-in link (one user)"), permissions=["change"])
    def make_sign_in_link(self, request: HttpRequest, chosen: QuerySet[User]) -> None:
        """Shows a link that signs the chosen user in once."""
        user = chosen.filter(is_active=True).first()
        # Whoever may edit users but is no superuser could otherwise become one by such a link.
        if chosen.count() != 1 or user is None or (user.is_superuser and not _is_superuser(request)):
            self.message_user(request, _("Choose one active user who has no more rights than you."), messages.ERROR)
            return
        path = service.make_sign_in_link(user)
        self.message_user(
            request,
            _("%(user)s can sign in once within a quarter of an hour: %(link)s")
            % {"user": user, "link": request.build_absolute_uri(path)},
            messages.SUCCESS,
        )


class MemberInline(admin.TabularInline):
    """The members of a project."""

    model = Member
    extra = 0
    autocomplete_fields = ["user"]


@admin.register(Project)
class ProjectAdmin(admin.ModelAdmin):
    """Projects with their members."""

    list_display = ["name", "weight", "description"]
    search_fields = ["name"]
    inlines = [MemberInline]


class TokenForm(forms.ModelForm):
    """What a new access token is for and what it covers."""

    scopes = forms.MultipleChoiceField(
        choices=[(scope, scope) for scope in service.SCOPES],
        widget=forms.CheckboxSelectMultiple,
        initial=["read", "submit"],
    )
    days = forms.IntegerField(min_value=1, max_value=366, initial=90, label=_("Valid for days"))

    class Meta:
        model = Token
        fields = ["user", "name", "scopes"]


@admin.register(Token)
class TokenAdmin(admin.ModelAdmin):
    """Access tokens: made here, shown once, revoked by deleting them."""

    list_display = ["name", "user", "scopes", "created_at", "expires_at", "last_used_at"]
    list_select_related = ["user"]
    autocomplete_fields = ["user"]

    def get_form(self, request: HttpRequest, obj: Token | None = None, change: bool = False, **kwargs: Any) -> Any:
        return super().get_form(request, obj, change=change, **(kwargs if change else {**kwargs, "form": TokenForm}))

    def get_fields(self, request: HttpRequest, obj: Token | None = None) -> Any:
        if obj is None:
            return ["user", "name", "scopes", "days"]
        return ["user", "name", "scopes", "created_at", "expires_at", "last_used_at"]

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        # By a token of a superuser, whoever may make tokens would become one.
        if not _is_superuser(request):
            kwargs["queryset"] = User.objects.filter(is_superuser=False)
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    def has_change_permission(self, request: HttpRequest, obj: Token | None = None) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: Token, form: Any, change: bool) -> None:
        """Makes the token and shows its secret, which is not kept."""
        chosen = form.cleaned_data
        token, secret = service.make_token(
            chosen["user"], chosen["name"], scopes=chosen["scopes"], life=timedelta(days=chosen["days"])
        )
        # What the page goes on with is the row that was made.
        obj.__dict__.update(token.__dict__)
        self.message_user(request, _("The token, shown this once: %(secret)s") % {"secret": secret}, messages.WARNING)


class Removable(admin.ModelAdmin):
    """Rows that are looked at and removed here, and made by their owners alone: whoever made one could be them."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


for _model in (Authenticator, SocialAccount, SocialApp, SocialToken, EmailAddress, UserSession):
    if admin.site.is_registered(_model):
        admin.site.unregister(_model)


@admin.register(Authenticator)
class AuthenticatorAdmin(Removable):
    """Second factors: removed for whoever lost theirs. Their secrets are not shown."""

    list_display = ["user", "type", "created_at", "last_used_at"]
    search_fields = ["user__username"]
    fields = ["user", "type", "created_at", "last_used_at"]


@admin.register(SocialAccount)
class SocialAccountAdmin(Removable):
    """Which account of which provider signs in whom."""

    list_display = ["user", "provider", "uid"]
    search_fields = ["user__username", "uid"]
    fields = ["user", "provider", "uid", "last_login", "date_joined"]


def _is_superuser(request: HttpRequest) -> bool:
    return isinstance(request.user, User) and request.user.is_superuser
