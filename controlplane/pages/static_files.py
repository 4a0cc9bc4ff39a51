"""Static files under names that carry a hash of what is in them: browsers keep them for ever, and never an old one."""

from __future__ import annotations

from typing import Any

from django.contrib.staticfiles.apps import StaticFilesConfig
from django.contrib.staticfiles.storage import ManifestFilesMixin, StaticFilesStorage
from whitenoise.storage import CompressedManifestStaticFilesStorage


class StaticFiles(StaticFilesConfig):
    """Without source maps: nobody debugs the libraries here, and maps are a third of what would be compressed."""

    ignore_patterns = [*StaticFilesConfig.ignore_patterns, "*.map"]


class CollectedStaticFiles(CompressedManifestStaticFilesStorage):
    """What ``collectstatic`` wrote. Where nothing was collected, as in a checkout that is tested, names stay plain."""

    # Our own modules import each other; nobody else's scripts name a file.
    patterns = (
        *(entry for entry in ManifestFilesMixin.patterns if entry[0] == "*.css"),
        ("yard/*.js", ManifestFilesMixin._js_module_import_aggregation_patterns[1]),  # type: ignore[attr-defined]
    )
    # A style sheet of another application may name what its release does not bring, such as a source map.
    manifest_strict = False

    def url(self, name: str, force: bool = False) -> str:
        if not self.hashed_files:
            return str(StaticFilesStorage.url(self, name))
        return str(super().url(name, force))

    def hashed_name(self, name: str, content: Any = None, filename: str | None = None) -> str:
        try:
            return str(super().hashed_name(name, content, filename))
        except ValueError:
            return name
