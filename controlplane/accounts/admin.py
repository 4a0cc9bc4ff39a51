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
from django.contrib.auth.admin import GroupAdmin as BaseGroupAdmin
from django.contrib.auth.admin import UserAdmin as BaseUserAdmin
from django.contrib.auth.models import Group
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from controlplane.accounts import audit, service
from controlplane.accounts.models import AuditEntry, Member, Project, Token, User
from controlplane.accounts.permissions import covers, covers_group, grantable, grantable_groups


class Audited(admin.ModelAdmin):
    """Writes each change of a row into the audit log, in its transaction."""

    # True if the change goes through a service, which writes the entries.
    saves_by_service = False
    deletes_by_service = False

    def construct_change_message(self, request: HttpRequest, form: Any, formsets: Any, add: bool = False) -> Any:
        """Called by Django once a form and its inlines are saved, before Django logs the change itself."""
        message = super().construct_change_message(request, form, formsets, add)
        if not self.saves_by_service:
            row = getattr(form, "instance", None) or form.user
            self._record("add" if add else "change", row, form, form.changed_data)
            for formset in formsets or ():
                self._record_inline(formset)
        return message

    def log_deletions(self, request: HttpRequest, queryset: Any) -> Any:
        if not self.deletes_by_service:
            for row in queryset:
                kept = {field.name: getattr(row, field.attname) for field in row._meta.concrete_fields}
                audit.record(f"{row._meta.model_name}.delete", row, before=kept)
        return super().log_deletions(request, queryset)

    def response_action(self, request: HttpRequest, queryset: Any, *args: Any, **kwargs: Any) -> Any:
        with transaction.atomic():
            return super().response_action(request, queryset, *args, **kwargs)

    def _record_inline(self, formset: Any) -> None:
        changed = dict(formset.changed_objects)
        for form in formset.forms:
            if form.instance in formset.new_objects:
                self._record("add", form.instance, form, form.changed_data)
            elif form.instance in changed:
                self._record("change", form.instance, form, changed[form.instance])
        for row in formset.deleted_objects:
            kept = {field.name: getattr(row, field.attname) for field in row._meta.concrete_fields}
            audit.record(f"{row._meta.model_name}.delete", (row._meta.model_name, None, str(row)), before=kept)

    def _record(self, deed: str, row: Any, form: Any, names: Any) -> None:
        if deed == "change" and not names:
            return
        before = {name: form.initial.get(name) for name in names} if deed == "change" else {}
        after = {name: form.cleaned_data.get(name) for name in names}
        audit.record(f"{row._meta.model_name}.{deed}", row, before=before, after=after)


# The fields of a user that determine rights.
RIGHTS = ("is_active", "is_staff", "is_superuser", "groups", "user_permissions")


@admin.register(User)
class UserAdmin(Audited, BaseUserAdmin):
    """People and service accounts."""

    fieldsets = (
        *(BaseUserAdmin.fieldsets or ()),
        (_("Switchyard"), {"fields": ("default_project", "theme", "is_from_directory")}),
    )
    actions = ["make_sign_in_link"]

    def has_change_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        """Service accounts are changed on their page, where none gets a password or rights beyond its project."""
        if obj is not None and obj.service_of_id is not None:
            return False
        return super().has_change_permission(request, obj) and (obj is None or covers(asker(request), obj))

    def has_delete_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        return super().has_delete_permission(request, obj) and (obj is None or covers(asker(request), obj))

    def get_readonly_fields(self, request: HttpRequest, obj: User | None = None) -> tuple[str, ...]:
        """Nobody changes their own rights, and only a superuser creates a superuser."""
        fixed = tuple(map(str, super().get_readonly_fields(request, obj)))
        if obj is not None and obj.pk == asker(request).pk:
            return (*fixed, *RIGHTS)
        return fixed if asker(request).is_superuser else (*fixed, "is_superuser")

    def formfield_for_manytomany(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """Offers the groups and permissions that the requesting user has."""
        if db_field.name == "groups":
            kwargs["queryset"] = grantable_groups(asker(request))
        elif db_field.name == "user_permissions":
            kwargs["queryset"] = grantable(asker(request)).select_related("content_type")
        return super().formfield_for_manytomany(db_field, request, **kwargs)

    @admin.action(description=_("Make a sign-in link (one user)"), permissions=["change"])
    def make_sign_in_link(self, request: HttpRequest, chosen: QuerySet[User]) -> None:
        """Shows a link that signs the chosen user in once."""
        user = (chosen & service.people()).first()
        # Otherwise the link would let a user administrator act as somebody with more rights.
        if chosen.count() != 1 or user is None or not covers(asker(request), user):
            self.message_user(request, _("Choose one active person who has no more rights than you."), messages.ERROR)
            return
        path = service.make_sign_in_link(user)
        self.message_user(
            request,
            _("%(user)s can sign in once within a quarter of an hour: %(link)s")
            % {"user": user, "link": request.build_absolute_uri(path)},
            messages.SUCCESS,
        )


admin.site.unregister(Group)


@admin.register(Group)
class GroupAdmin(Audited, BaseGroupAdmin):
    """Roles. A group that gives more than the user has, or that the user is in, is for others to change."""

    def has_change_permission(self, request: HttpRequest, obj: Group | None = None) -> bool:
        return super().has_change_permission(request, obj) and self._is_below(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Group | None = None) -> bool:
        return super().has_delete_permission(request, obj) and self._is_below(request, obj)

    def formfield_for_manytomany(self, db_field: Any, request: Any = None, **kwargs: Any) -> Any:
        if db_field.name == "permissions":
            kwargs["queryset"] = grantable(asker(request)).select_related("content_type")
        return super().formfield_for_manytomany(db_field, request, **kwargs)

    def _is_below(self, request: HttpRequest, group: Group | None) -> bool:
        user = asker(request)
        if group is None or user.is_superuser:
            return True
        return covers_group(user, group) and not user.groups.filter(pk=group.pk).exists()


class MembersOfOthers(forms.BaseInlineFormSet):
    """The roles of a project's members. Nobody but a superuser gives themselves a role, or changes their own."""

    asker: User

    def clean(self) -> None:
        """Refuses a change of one's own role, at its row."""
        super().clean()
        for form in self.forms:
            named = form.cleaned_data.get("user")
            whose = {form.instance.user_id, form.initial.get("user"), named.pk if named else None}
            if form.has_changed() and self.asker.pk in whose and not self.asker.is_superuser:
                form.add_error(None, _("You may not change your own role; ask another accountant or a superuser."))


class MemberInline(admin.TabularInline):
    """The members of a project."""

    model = Member
    formset = MembersOfOthers
    extra = 0
    autocomplete_fields = ["user"]

    def get_formset(self, request: HttpRequest, obj: Project | None = None, **kwargs: Any) -> Any:
        formset = super().get_formset(request, obj, **kwargs)
        return type(formset.__name__, (formset,), {"asker": asker(request)})


@admin.register(Project)
class ProjectAdmin(Audited):
    """Projects with their members."""

    list_display = ["name", "weight", "description"]
    search_fields = ["name"]
    inlines = [MemberInline]


class TokenForm(forms.ModelForm):
    """The purpose and scopes of a new access token. Its maker may use all rights of its user."""

    asker: User

    scopes = forms.MultipleChoiceField(
        choices=[(scope, scope) for scope in service.SCOPES],
        widget=forms.CheckboxSelectMultiple,
        initial=["read", "submit"],
    )
    days = forms.IntegerField(min_value=1, max_value=service.MOST_DAYS, initial=90, label=_("Valid for days"))

    class Meta:
        model = Token
        fields = ["user", "name", "scopes"]

    def clean_user(self) -> User:
        """Refuses a token by which its maker would gain rights."""
        user: User = self.cleaned_data["user"]
        if not covers(self.asker, user):
            raise forms.ValidationError(_("Choose a user who has no more rights than you."))
        return user


@admin.register(Token)
class TokenAdmin(Audited):
    """Access tokens: created here, shown once, revoked by deleting them."""

    saves_by_service = deletes_by_service = True

    list_display = ["name", "user", "scopes", "created_at", "expires_at", "last_used_at"]
    list_select_related = ["user"]
    autocomplete_fields = ["user"]

    def get_form(self, request: HttpRequest, obj: Token | None = None, change: bool = False, **kwargs: Any) -> Any:
        if change:
            return super().get_form(request, obj, change=change, **kwargs)
        form = super().get_form(request, obj, change=change, **{**kwargs, "form": TokenForm})
        return type(form.__name__, (form,), {"asker": asker(request)})

    def get_fields(self, request: HttpRequest, obj: Token | None = None) -> Any:
        if obj is None:
            return ["user", "name", "scopes", "days"]
        return ["user", "name", "scopes", "created_at", "expires_at", "last_used_at"]

    def has_change_permission(self, request: HttpRequest, obj: Token | None = None) -> bool:
        return False

    def delete_model(self, request: HttpRequest, obj: Token) -> None:
        service.revoke_token(obj.user, obj.pk)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Token]) -> None:
        for token in queryset:
            self.delete_model(request, token)

    def save_model(self, request: HttpRequest, obj: Token, form: Any, change: bool) -> None:
        """Creates the token and shows its secret, which is stored only as a digest."""
        chosen = form.cleaned_data
        token, secret = service.make_token(
            chosen["user"], chosen["name"], scopes=chosen["scopes"], life=timedelta(days=chosen["days"])
        )
        # Django's page continues with the created row.
        obj.__dict__.update(token.__dict__)
        self.message_user(request, _("The token, shown this once: %(secret)s") % {"secret": secret}, messages.WARNING)


@admin.register(AuditEntry)
class AuditEntryAdmin(admin.ModelAdmin):
    """The audit log, read-only; the page at ``/audit`` shows it better."""

    list_display = ["at", "actor", "via", "action", "kind", "name", "reason"]
    list_filter = ["via", "action", "kind"]
    search_fields = ["actor", "name", "object_id"]
    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: AuditEntry | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: AuditEntry | None = None) -> bool:
        return False


class Removable(Audited):
    """Rows that are shown and removed here but created by their owners only, because their maker could sign in with
    them."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_delete_permission(request, obj) and (obj is None or covers(asker(request), obj.user))


for _model in (Authenticator, SocialAccount, SocialApp, SocialToken, EmailAddress, UserSession):
    if admin.site.is_registered(_model):
        admin.site.unregister(_model)


@admin.register(Authenticator)
class AuthenticatorAdmin(Removable):
    """Second factors: removed for users who lost theirs. Their secrets are not shown."""

    list_display = ["user", "type", "created_at", "last_used_at"]
    search_fields = ["user__username"]
    fields = ["user", "type", "created_at", "last_used_at"]


@admin.register(SocialAccount)
class SocialAccountAdmin(Removable):
    """The accounts at providers that users sign in with."""

    list_display = ["user", "provider", "uid"]
    search_fields = ["user__username", "uid"]
    fields = ["user", "provider", "uid", "last_login", "date_joined"]


def asker(request: HttpRequest) -> User:
    """The requesting user; the site admits nobody else."""
    assert isinstance(request.user, User)
    return request.user
