"""Sign-in by an LDAP directory, with django-auth-ldap. It is imported only if a directory is configured.

The directory signs in users whose accounts it created, or for whom an administrator allowed it: an entry with the name
of a local user is not that user. One entry is one user, however its name is written when signing in.
"""

from __future__ import annotations

import logging
import re
from typing import Any, Final

import ldap
from django.conf import settings
from django.http import HttpRequest
from django_auth_ldap.backend import LDAPBackend
from django_auth_ldap.config import GroupOfNamesType, LDAPSearch

from controlplane.accounts.memberships import follow_groups
from controlplane.accounts.models import User
from controlplane.accounts.providers import Directory

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 5
ATTRIBUTES: Final = {"first_name": "givenName", "last_name": "sn", "email": "mail"}
_LONGEST: Final = {"first_name": 150, "last_name": 150, "email": 254}  # as Django's user has them
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._@+-]{0,62}")


def sign_in(request: HttpRequest | None, name: str, password: str) -> User | None:
    """Return the active user with this name and password in the directory, with the roles of their groups."""
    directory = settings.DIRECTORY
    assert directory is not None  # without one this backend is not installed
    user = DirectoryBackend(directory).authenticate(request, username=name, password=password)
    if user is None or not user.is_active:
        return None
    if directory.grants:
        try:
            groups = user.ldap_user.group_names
        except ldap.LDAPError:
            return None
        follow_groups(user, directory.grants, groups, directory.url)
    return User.objects.get(pk=user.pk)


class DirectoryBackend(LDAPBackend):
    """The backend of django-auth-ldap for the directory of the settings."""

    def __init__(self, directory: Directory) -> None:
        self._name_attribute = directory.name_attribute
        options = {ldap.OPT_NETWORK_TIMEOUT: TIMEOUT_S, ldap.OPT_TIMEOUT: TIMEOUT_S, ldap.OPT_REFERRALS: 0}
        if directory.ca_file:
            options |= {ldap.OPT_X_TLS_CACERTFILE: directory.ca_file, ldap.OPT_X_TLS_NEWCTX: 0}
        self.default_settings = {
            "SERVER_URI": directory.url,
            "START_TLS": directory.start_tls,
            "BIND_DN": directory.bind_dn,
            "BIND_PASSWORD": directory.bind_password,
            "CONNECTION_OPTIONS": options,
            "USER_SEARCH": LDAPSearch(directory.users, ldap.SCOPE_SUBTREE, directory.user_filter),
        }
        if directory.groups:
            self.default_settings |= {
                "GROUP_SEARCH": LDAPSearch(directory.groups, ldap.SCOPE_SUBTREE, "(objectClass=groupOfNames)"),
                "GROUP_TYPE": GroupOfNamesType(),
                "REQUIRE_GROUP": directory.required_group or None,
            }

    def get_or_build_user(self, username: str, ldap_user: Any) -> tuple[User, bool]:
        """Return the user of an entry whose password was right. Raises AuthenticationFailed if the name belongs to
        another user."""
        name = _first(ldap_user.attrs, self._name_attribute).lower()
        if not _NAME.fullmatch(name):
            log.warning("the entry %s has no %s that a user can be called by", ldap_user.dn, self._name_attribute)
            raise ldap_user.AuthenticationFailed
        user = User.objects.filter(username__iexact=name).first()
        if user is not None and not user.is_from_directory:
            log.warning("the entry %s is called like a user who does not sign in by the directory", ldap_user.dn)
            raise ldap_user.AuthenticationFailed
        found = user or User(username=name, is_from_directory=True)
        for field, attribute in ATTRIBUTES.items():
            longest = _LONGEST[field]
            setattr(found, field, _first(ldap_user.attrs, attribute)[:longest])
        return found, user is None


def _first(attributes: Any, name: str) -> str:
    """Return the first value of an attribute, without unprintable characters."""
    values = attributes.get(name) or [""]
    return "".join(letter for letter in str(values[0]) if letter.isprintable())
