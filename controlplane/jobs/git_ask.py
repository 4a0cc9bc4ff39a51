"""Reads ``workdir: {git: …}`` of a job file: the repository and revision from which its stages have their code."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from django.conf import settings
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from controlplane import addresses
from controlplane.accounts.models import Project
from controlplane.jobs.section import Section
from controlplane.jobs.values import Unacceptable, matching, nearest, shown

KEYS: Final = ("url", "rev", "secret", "username")
# Names of branches and tags, ``refs/…`` and full ids of commits: nothing that git reads as an option, a range or a
# mapping of references.
REV: Final = re.compile(r"(?!.*(?:\.\.|//|/\.|\.lock(?:/|$)|[./]$))[A-Za-z0-9_][A-Za-z0-9._/+-]{0,199}")
_rev = matching(REV, gettext_noop("the name of a branch or tag, or the full id of a commit"))
_username = matching(
    re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,127}"), gettext_noop("the name that goes with the secret")
)
# What git and forges show as an address for SSH: ssh://git@host/team/code.git and git@host:team/code.git.
_SSH: Final = re.compile(
    r"(?:(?:git\+)?ssh://(?:[^/@]*@)?([^/@:]+)(?::[0-9]*)?/|[^/@:]+@([^/@:]+):)(.*)", re.IGNORECASE
)
_SECRET: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_secret = matching(_SECRET, gettext_noop("the name of a secret of the project"))


@dataclass(frozen=True, slots=True)
class GitAsk:
    """A repository and a revision, and the name of the secret that opens it, if it needs one."""

    url: str
    rev: str
    secret: str
    username: str

    def plain(self) -> dict[str, str | None]:
        return {"url": self.url, "rev": self.rev, "secret": self.secret or None}


def read(job: Section, project: Project | None, secrets: Callable[[Project], Collection[str]]) -> GitAsk | None:
    """Return what ``workdir`` says of git; None where it is a folder, which clients send, or is left out."""
    value = job.values.get("workdir")
    if not isinstance(value, dict):
        return None
    outer = Section(value, "/workdir", job.refusals, ("git",))
    if not outer.has("git"):
        outer.refuse("git", _("git is missing: name the url of a repository and a rev"), "missing")
        return None
    part = Section(value["git"], "/workdir/git", job.refusals, KEYS)
    if job.has("bundle"):
        job.refuse("bundle", _("a job takes its code from a git repository or from a bundle, not both"), "exclusive")
    if isinstance(value["git"], dict) and not part.has("url"):
        part.refuse("url", _("url is missing: the https:// address of the repository"), "missing")
    url, rev = part.read("url", _url, ""), part.read("rev", _rev, "HEAD")
    name, username = part.read("secret", _secret, ""), part.read("username", _username, "git")
    if name and project is not None and name not in (held := secrets(project)):
        detail = _("project {project} has no secret {name}; {others}")
        others = nearest(name, held)
        part.refuse("secret", detail.format(project=project.name, name=shown(name), others=others), "unknown_secret")
    if part.has("username") and not part.has("secret"):
        part.refuse("username", _("username goes with a secret, which is its password"), "missing")
    return GitAsk(url, rev, name, username) if url and rev else None


def _url(value: object) -> str:
    """Read the address of a repository: https alone, and no host that only the server should reach."""
    said = _("must be the address of a repository such as https://example.org/team/code.git, not {value}")
    if not isinstance(value, str) or "?" in value or "#" in value or "\\" in value:
        raise Unacceptable(said.format(value=shown(value)))
    if ssh := _SSH.fullmatch(value):
        url = shown(f"https://{ssh[1] or ssh[2]}/{ssh[3].lstrip('/')}")
        said = _("is read over https alone: write {url}, and of a private repository a token as secret: {key}")
        raise Unacceptable(said.format(url=url, key="GIT_TOKEN"), "https_only")
    try:
        parts = addresses.parsed(value, settings.GIT_NETWORKS)
    except addresses.AddressRefused as error:
        if error.code == "https_only":
            raise Unacceptable(
                _("must begin with https://, not {value}").format(value=shown(value)), "https_only"
            ) from None
        if error.code == "private_address":
            raise Unacceptable(
                _("must name a public host; private networks are those of YARD_GIT_NETWORKS"), error.code
            ) from None
        if "@" in value:
            said = _("must hold no user and no password; name a secret of the project as secret: {key}")
            raise Unacceptable(said.format(key="GIT_TOKEN"), "credentials") from None
        raise Unacceptable(said.format(value=shown(value))) from None
    if len(parts.path) < 2:
        raise Unacceptable(said.format(value=shown(value)))
    return value
