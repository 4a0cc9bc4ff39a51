"""Finds the control plane: its URL and token.

Precedence: arguments, then ``YARD_URL`` and ``YARD_TOKEN``, then ``./.yard.toml``, then ``~/.config/yard/config.toml``,
then ``client.toml`` that the local stack wrote under ``YARD_HOME`` (default ``~/.switchyard``).

A folder of somebody else may have a ``.yard.toml``. A token for another URL is therefore never sent to its URL: a token
is used only with the URL in the same file, or with one that the user gave beside it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from switchyard.problem import SwitchyardError, Unreachable


class ConfigError(SwitchyardError):
    """Raised if a configuration file cannot be used; the message names the file."""


@dataclass(frozen=True, slots=True)
class Address:
    """The URL and the token. ``source`` tells where the URL was found, for people. ``project`` may be empty."""

    url: str
    token: str = ""
    source: str = "argument"
    project: str = ""


def config_path(env: Mapping[str, str] | None = None) -> Path:
    """Return the path of the user's own configuration file, which ``yard login`` writes."""
    env = os.environ if env is None else env
    base = env.get("XDG_CONFIG_HOME") or str(Path(env.get("HOME", "~")).expanduser() / ".config")
    return Path(base) / "yard" / "config.toml"


def find(
    url: str | None = None,
    token: str | None = None,
    *,
    profile: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Address:
    """Return the address to use. Raises :class:`Unreachable` if no URL is known, :class:`ConfigError` for an invalid
    file."""
    env = os.environ if env is None else env
    profile = profile or env.get("YARD_PROFILE") or ""
    foreign, own = _files(env, cwd or Path.cwd(), profile)
    given_url, given_token = url or env.get("YARD_URL"), token or env.get("YARD_TOKEN")
    if given_url:
        same = next(
            (a for a in (foreign, *own) if a and _same(a.url, given_url) and a.token),
            None,
        )
        project = env.get("YARD_PROJECT") or (same.project if same else "")
        return Address(
            given_url,
            given_token or (same.token if same else ""),
            "--url or YARD_URL",
            project,
        )
    chosen = next((a for a in ((None if profile else foreign), *own) if a and a.url), None)
    if chosen is None:
        raise Unreachable(
            "no server is known: start one with ./script/demo, name one with `yard login`, or set YARD_URL"
        )
    kept = next(
        (a.token for a in (chosen, *own) if a and _same(a.url, chosen.url) and a.token),
        "",
    )
    if given_token and chosen is foreign and not any(a and _same(a.url, chosen.url) for a in own):
        raise ConfigError(
            f"a token is given but its server is not: {chosen.source} names {chosen.url}, and a token is not sent to "
            "an address that only a folder names; set YARD_URL beside YARD_TOKEN"
        )
    project = env.get("YARD_PROJECT") or chosen.project
    return Address(chosen.url, given_token or kept, chosen.source, project)


def _files(env: Mapping[str, str], cwd: Path, profile: str) -> tuple[Address | None, list[Address | None]]:
    """Return the entry of ``./.yard.toml``, and those of the user's own files in order."""
    home = Path(env.get("YARD_HOME") or Path(env.get("HOME", "~")).expanduser() / ".switchyard")
    own: list[Address | None] = [_read(config_path(env), profile)]
    if not profile:
        own.append(_read(home / "client.toml", ""))
    elif own[0] is None:
        raise ConfigError(f"{config_path(env)} has no profile {profile!r}")
    return _read(cwd / ".yard.toml", ""), own


def _read(path: Path, profile: str) -> Address | None:
    import tomllib

    try:
        table: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    if profile:
        profiles: dict[str, dict[str, Any]] = table.get("profiles", {})
        if profile not in profiles:
            return None
        table = profiles[profile]
    return Address(
        str(table.get("url", "")),
        str(table.get("token", "")),
        str(path),
        str(table.get("project", "")),
    )


def _same(one: str, other: str) -> bool:
    return bool(one) and one.rstrip("/").lower() == other.rstrip("/").lower()
