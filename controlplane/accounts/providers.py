"""Providers of OpenID Connect and the LDAP directory, read once from the environment, by the settings.

Does not import Django's settings, which import this module.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured

ROLES = ("viewer", "member", "lead")
_NAME = re.compile(r"[a-z][a-z0-9-]{0,29}")
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}


@dataclass(frozen=True, slots=True)
class Grant:
    """A group of a provider or directory, and the role in a project that its members get here."""

    group: str
    project: str
    role: str


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider of OpenID Connect. With neither ``domains`` nor ``groups`` nobody gets an account by signing in."""

    name: str
    title: str
    issuer: str
    client_id: str
    secret: str
    domains: frozenset[str]
    groups: frozenset[str]
    groups_claim: str
    grants: tuple[Grant, ...]

    def app(self) -> dict[str, object]:
        """This provider as an entry of ``SOCIALACCOUNT_PROVIDERS``."""
        return {
            "provider_id": self.name,
            "name": self.title,
            "client_id": self.client_id,
            "secret": self.secret,
            "settings": {"server_url": self.issuer, "oauth_pkce_enabled": True},
        }


@dataclass(frozen=True, slots=True)
class Directory:
    """An LDAP directory. ``required_group`` is the DN of a group that everybody who signs in must be in."""

    url: str
    start_tls: bool
    ca_file: str
    bind_dn: str
    bind_password: str
    users: str
    user_filter: str
    name_attribute: str
    groups: str
    required_group: str
    grants: tuple[Grant, ...]


def read_directory(environment: Mapping[str, str]) -> Directory | None:
    """Read the directory from ``YARD_LDAP_URL``, if set. Raises ImproperlyConfigured with the invalid variable."""
    url = environment.get("YARD_LDAP_URL", "")
    if not url:
        return None
    if find_spec("django_auth_ldap") is None:
        raise ImproperlyConfigured(
            "YARD_LDAP_URL is set, but the package django-auth-ldap is not installed: install the headers of OpenLDAP "
            '(libldap2-dev, libsasl2-dev) and then pip install "switchyard[ldap]"'
        )

    def value(key: str, default: str = "") -> str:
        return environment.get(f"YARD_LDAP_{key}") or default

    parts, start_tls = urlsplit(url), value("START_TLS").lower() in {"1", "true", "yes", "on"}
    if parts.scheme not in {"ldap", "ldaps", "ldapi"}:
        raise ImproperlyConfigured(f"YARD_LDAP_URL is {url!r}; it begins with ldaps://, ldap:// or ldapi://")
    if parts.scheme == "ldap" and not start_tls and parts.hostname not in _LOOPBACK:
        raise ImproperlyConfigured(
            f"YARD_LDAP_URL is {url!r}, by which passwords would travel in the clear; "
            "use ldaps://, or set YARD_LDAP_START_TLS=1"
        )
    if not value("USERS"):
        raise ImproperlyConfigured("YARD_LDAP_URL is set, but YARD_LDAP_USERS is not: under which entry the people are")
    required, grants = value("REQUIRED_GROUP"), read_grants("YARD_LDAP_PROJECTS", value("PROJECTS"))
    if (required or grants) and not value("GROUPS"):
        raise ImproperlyConfigured("YARD_LDAP_GROUPS is not set: under which entry the groups are that the others name")
    password_file = value("BIND_PASSWORD_FILE")
    return Directory(
        url=url,
        start_tls=start_tls,
        ca_file=value("CA_FILE"),
        bind_dn=value("BIND_DN"),
        bind_password=secret_in("YARD_LDAP_BIND_PASSWORD_FILE", password_file) if password_file else "",
        users=value("USERS"),
        user_filter=value("USER_FILTER", "(uid=%(user)s)"),
        name_attribute=value("NAME_ATTRIBUTE", "uid"),
        groups=value("GROUPS"),
        required_group=required,
        grants=grants,
    )


def read_providers(environment: Mapping[str, str]) -> dict[str, Provider]:
    """Read the providers that ``YARD_OIDC`` lists, by name. Raises ImproperlyConfigured with the invalid variable."""
    return {name: _provider(name, environment) for name in _words(environment.get("YARD_OIDC", ""))}


def _provider(name: str, environment: Mapping[str, str]) -> Provider:
    if not _NAME.fullmatch(name):
        raise ImproperlyConfigured(
            f"YARD_OIDC names {name!r}; a provider has 1 to 30 lower-case letters, digits and -, a letter first"
        )
    prefix = f"YARD_OIDC_{name.upper().replace('-', '_')}_"

    def value(key: str, default: str | None = None) -> str:
        found = environment.get(prefix + key, default)
        if not found and default is None:
            raise ImproperlyConfigured(f"YARD_OIDC names {name}, but {prefix}{key} is not set")
        return found or ""

    issuer = value("ISSUER").rstrip("/")
    parts = urlsplit(issuer)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        raise ImproperlyConfigured(f"{prefix}ISSUER is {issuer!r}; it must be an address that begins with https://")
    return Provider(
        name=name,
        title=value("TITLE", name),
        issuer=issuer,
        client_id=value("CLIENT_ID"),
        secret=secret_in(prefix + "CLIENT_SECRET_FILE", value("CLIENT_SECRET_FILE")),
        domains=frozenset(word.lower().lstrip("@") for word in _words(value("DOMAINS", ""))),
        groups=frozenset(_words(value("GROUPS", ""))),
        groups_claim=value("GROUPS_CLAIM", "groups"),
        grants=read_grants(prefix + "PROJECTS", value("PROJECTS", "")),
    )


def read_grants(variable: str, text: str) -> tuple[Grant, ...]:
    """Parse grants of the form ``GROUP=PROJECT:ROLE``, separated by commas. Raises ImproperlyConfigured for an invalid
    one."""
    found = []
    for word in _words(text):
        group, _, right = word.rpartition("=")
        project, _, role = right.partition(":")
        if not group or not project or (role or "member") not in ROLES:
            raise ImproperlyConfigured(
                f'{variable} has "{word}"; each is like GROUP=PROJECT:ROLE, with a role of {", ".join(ROLES)}'
            )
        found.append(Grant(group.strip(), project.strip(), role or "member"))
    return tuple(found)


def secret_in(variable: str, path: str) -> str:
    """Read the secret in a file. Raises ImproperlyConfigured if it cannot be read, or is empty."""
    try:
        secret = Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ImproperlyConfigured(f"{variable} names {path}, which cannot be read: {error.strerror}") from None
    if not secret:
        raise ImproperlyConfigured(f"{variable} names {path}, which is empty")
    return secret


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
