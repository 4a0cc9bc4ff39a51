"""Users, projects, roles, proofs of identity (stored as digests only), and the secrets of projects."""

from __future__ import annotations

import uuid

from django.contrib.auth.models import AbstractUser
from django.core.validators import RegexValidator
from django.db import models
from django.db.models import Func, Q, Value
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from controlplane.accounts import envelope

slug = RegexValidator(
    r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z",
    _("Use 1 to 63 lower-case letters, digits and hyphens; begin and end with a letter or digit."),
)

variable = RegexValidator(
    r"^[A-Za-z_][A-Za-z0-9_]{0,127}\Z",
    _("Use 1 to 128 letters, digits and _; begin with no digit."),
)


class User(AbstractUser):
    """A person or a service account. ``default_project`` is used if a job names none.

    ``time_zone`` is that of their pages, an IANA name; if empty, that of the browser. A service account belongs to the
    project ``service_of``, has a role there only, and acts by access tokens: it cannot sign in.
    """

    default_project = models.ForeignKey("Project", null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    theme = models.CharField(max_length=8, choices=[("", "system"), ("light", "light"), ("dark", "dark")], blank=True)
    time_zone = models.CharField(_("time zone"), max_length=64, blank=True, default="", db_default="")
    has_dismissed_checklist = models.BooleanField(default=False, db_default=False, editable=False)
    is_from_directory = models.BooleanField(
        _("signs in by the directory"),
        default=False,
        db_default=False,
        help_text=_("Whether the LDAP directory may sign this user in."),
    )
    service_of = models.ForeignKey(
        "Project", null=True, blank=True, editable=False, on_delete=models.CASCADE, related_name="service_accounts"
    )
    description = models.CharField(_("description"), max_length=200, blank=True, default="", db_default="")

    class Meta(AbstractUser.Meta):
        constraints = [
            models.CheckConstraint(
                condition=Q(service_of=None)
                | Q(is_staff=False, is_superuser=False, is_from_directory=False, password__startswith="!"),
                name="service_account_cannot_sign_in",
                violation_error_message=_("A service account has no password and no rights beyond its project."),
            )
        ]


class Project(models.Model):
    """The tenant that owns jobs, quota and fair share.

    Its ``number`` is never reused: nodes derive the user of its stages from it.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    number = models.PositiveIntegerField(
        unique=True, editable=False, db_default=Func(Value("access_project_number"), function="nextval")
    )
    name = models.CharField(max_length=63, unique=True, validators=[slug])
    weight = models.FloatField(default=1.0, help_text=_("Fair share in proportion to the other projects."))
    description = models.CharField(max_length=200, blank=True)
    members: models.ManyToManyField[User, Member] = models.ManyToManyField(User, through="Member")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]
        constraints = [models.CheckConstraint(condition=Q(weight__gt=0), name="project_weight_positive")]

    def __str__(self) -> str:
        return self.name


class Member(models.Model):
    """A person's role in a project. Viewers read, members submit and cancel their own, leads act on all of it."""

    class Role(models.TextChoices):
        VIEWER = "viewer", _("viewer")
        MEMBER = "member", _("member")
        LEAD = "lead", _("lead")

    project = models.ForeignKey(Project, on_delete=models.CASCADE)
    user = models.ForeignKey(User, on_delete=models.CASCADE)
    role = models.CharField(max_length=8, choices=Role.choices, default=Role.MEMBER)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "user"], name="member_once")]

    def __str__(self) -> str:
        return f"{self.user} in {self.project}"


class Token(models.Model):
    """A personal access token. The secret is shown once; only its SHA-256 digest is kept."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="tokens")
    name = models.CharField(max_length=60)
    digest = models.CharField(max_length=64, unique=True, editable=False)
    scopes = models.JSONField(default=list, help_text=_("Any of read, submit, admin."))
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    last_used_at = models.DateTimeField(null=True, editable=False)

    class Meta:
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return self.name


class SignInLink(models.Model):
    """A link that signs its user in once, until it expires."""

    digest = models.CharField(max_length=64, primary_key=True)
    user = models.ForeignKey(User, on_delete=models.CASCADE)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True)


class Sealed(models.Model):
    """Encrypted content (see ``accounts.envelope``); a subclass's ``context`` is what the content is bound to."""

    ciphertext = models.BinaryField()
    wrapped_key = models.BinaryField()
    key_id = models.CharField(max_length=200, db_index=True)

    class Meta:
        abstract = True

    def context(self) -> str:
        """The identity of this row, to which its content is bound."""
        raise NotImplementedError

    def put(self, content: bytes) -> None:
        """Encrypt and set this content; the row is not saved. Raises ``KeyUnavailable``."""
        self._hold(envelope.seal(content, self.context()))

    def content(self) -> bytes:
        """Return the decrypted content. Raises ``KeyUnavailable``."""
        return envelope.unseal(self._envelope(), self.context())

    def require_key(self) -> None:
        """Raise ``KeyUnavailable`` if its key is missing."""
        envelope.check(self._envelope(), self.context())

    def rewrap(self) -> None:
        """Wrap the data key with the newest key; the row is not saved. Raises ``KeyUnavailable``."""
        self._hold(envelope.rewrap(self._envelope(), self.context()))

    def _envelope(self) -> envelope.Envelope:
        return envelope.Envelope(bytes(self.ciphertext), bytes(self.wrapped_key), self.key_id)

    def _hold(self, held: envelope.Envelope) -> None:
        self.ciphertext, self.wrapped_key, self.key_id = held.ciphertext, held.wrapped_key, held.key_id


class Secret(Sealed):
    """A named value of a project that is never shown again: stages get it by its name.

    A new value raises ``version``; ``updated_at`` and ``updated_by`` are of the present value.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="secrets")
    name = models.CharField(max_length=128, validators=[variable])
    version = models.PositiveIntegerField(default=1)
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField()
    updated_by = models.CharField(max_length=150)
    updated_at = models.DateTimeField()
    last_used_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["project", "name"], name="secret_name_once_per_project")]

    def __str__(self) -> str:
        return self.name

    def context(self) -> str:
        return f"secret {self.project_id} {self.name} {self.version}"


class DeviceCode(models.Model):
    """A program that waits for a person to sign it in (RFC 8628): they enter ``code`` on a page and confirm there.

    ``digest`` is that of the secret with which the program polls.
    """

    class Answer(models.TextChoices):
        NONE = ""
        CONFIRMED = "confirmed"
        REFUSED = "refused"

    digest = models.CharField(max_length=64, primary_key=True)
    code = models.CharField(max_length=8, unique=True)
    name = models.CharField(max_length=60)
    address = models.CharField(max_length=100, db_index=True)
    scopes = models.JSONField()
    days = models.PositiveSmallIntegerField()
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(db_index=True)
    asked_at = models.DateTimeField(null=True)
    interval_s = models.PositiveSmallIntegerField(default=5)
    answer = models.CharField(max_length=9, choices=Answer.choices, blank=True)
    user = models.ForeignKey(User, null=True, on_delete=models.CASCADE)


class IdempotencyKey(models.Model):
    """The answer to a POST with this key, kept for a day."""

    user = models.ForeignKey(User, on_delete=models.CASCADE)
    key = models.CharField(max_length=200)
    digest = models.CharField(max_length=64)
    status = models.PositiveSmallIntegerField(null=True)
    body = models.JSONField(null=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "key"], name="idempotency_key_once")]


class Tries(models.Model):
    """Failed sign-ins, counted by name and address, by address, and by name; and the addresses from which a name signed
    in.

    ``key`` is a digest of what is counted, because a mistyped name may be a password.
    """

    class Of(models.TextChoices):
        PAIR = "pair"
        ADDRESS = "address"
        NAME = "name"
        KNOWN = "known"

    key = models.CharField(max_length=64, primary_key=True)
    of = models.CharField(max_length=8, choices=Of.choices)
    failures = models.PositiveIntegerField(default=0)
    last_at = models.DateTimeField(db_index=True)
    until = models.DateTimeField(null=True)


class AuditEntry(models.Model):
    """Who changed what and how, with the values before and after. Append-only: see the triggers in its migration.

    Names and numbers are as of that time: the user and the object may be gone. ``credential`` names the token or
    session that was used, never its secret.
    """

    class Via(models.TextChoices):
        API = "api", _("API")
        CLI = "cli", _("command line")
        PAGE = "page", _("page")
        ADMIN = "admin", _("administration")
        SYSTEM = "system", _("server")

    id = models.BigAutoField(primary_key=True)
    at = models.DateTimeField(db_default=Now(), db_index=True)
    actor = models.CharField(max_length=150)
    actor_id = models.BigIntegerField(null=True)
    via = models.CharField(max_length=8, choices=Via.choices)
    credential = models.CharField(max_length=120, blank=True)
    action = models.CharField(max_length=60)
    kind = models.CharField(max_length=40)
    object_id = models.CharField(max_length=64, blank=True)
    name = models.CharField(max_length=200, blank=True)
    before = models.JSONField(default=dict)
    after = models.JSONField(default=dict)
    reason = models.CharField(max_length=500, blank=True)
    request_id = models.CharField(max_length=64, blank=True)

    class Meta:
        ordering = ["-id"]
        verbose_name_plural = _("audit entries")
        indexes = [
            models.Index(fields=["actor", "-id"], name="audit_by_actor"),
            models.Index(fields=["kind", "name", "-id"], name="audit_by_object"),
            models.Index(fields=["action", "-id"], name="audit_by_action"),
        ]

    def __str__(self) -> str:
        return f"{self.actor} {self.action} {self.name}"
