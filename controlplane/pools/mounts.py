"""The folders of a pool below which jobs may mount: what an administrator declared, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _

MOST: Final = 64
LONGEST: Final = 400
# What no job mounts, whoever declares it; agents refuse the same.
OF_THE_SYSTEM: Final = (
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/root", "/run", "/sbin", "/sys",
    "/usr", "/var/run", "/var/spool",
)  # fmt: skip


def is_plain(path: object) -> bool:
    """Whether this is an absolute path without ``.``, ``..`` and doubled slashes, of characters that every container
    engine takes."""
    if not isinstance(path, str) or not 1 < len(path) <= LONGEST or not path.startswith("/"):
        return False
    steps = path[1:].split("/")
    return all(step not in ("", ".", "..") for step in steps) and not any(
        each in ",:\"'\\" or not each.isprintable() for each in path
    )


def is_below(path: str, root: str) -> bool:
    return f"{path}/".startswith(f"{root}/")


def is_of_the_system(path: str) -> bool:
    return any(is_below(path, root) for root in OF_THE_SYSTEM)


def allowing(mounts: Iterable[Mapping[str, Any]], source: str) -> Mapping[str, Any] | None:
    """Return the narrowest declared folder in which this one lies."""
    found = [each for each in mounts if is_below(source, each["path"])]
    return max(found, key=lambda each: len(each["path"]), default=None)


def kept(mounts: Sequence[Mapping[str, Any]], source: str) -> Mapping[str, Any] | None:
    """Return the declared folder for which this one may not be mounted to be written: one that it lies in, or one that
    lies in it."""
    inside = [each for each in mounts if is_below(each["path"], source)]
    return next(
        (each for each in (allowing(mounts, source), *inside) if each and not each.get("writable", False)), None
    )


def valid(value: object) -> None:
    """Raise ValidationError unless this is what a pool may declare: a list of ``{"path", "writable"}``."""
    said = _("must be a list such as [{example}], of at most {most} folders with an absolute path")
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) > MOST:
        raise ValidationError(said.format(example='{"path": "/data", "writable": false}', most=MOST))
    for each in value:
        if (
            not isinstance(each, Mapping)
            or not {"path"} <= set(each) <= {"path", "writable"}
            or not is_plain(each["path"])
            or not isinstance(each.get("writable", False), bool)
        ):
            raise ValidationError(said.format(example='{"path": "/data", "writable": false}', most=MOST))
        if is_of_the_system(each["path"]):
            raise ValidationError(_("{path} is a folder of the system, which no job mounts").format(path=each["path"]))
