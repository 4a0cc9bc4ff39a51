"""Static files with content hashes in their names, so that browsers cache them for ever but never use an old one."""

from __future__ import annotations

from typing import Any

from django.contrib.staticfiles.apps import StaticFilesConfig
from django.contrib.staticfiles.storage import ManifestFilesMixin, StaticFilesStorage
from whitenoise.storage import CompressedManifestStaticFilesStorage


class StaticFiles(StaticFilesConfig):
    """Static files without source maps, which would be a third of the compressed size."""

    ignore_patterns = [*StaticFilesConfig.ignore_patterns, "*.map"]


class CollectedStaticFiles(CompressedManifestStaticFilesStorage):
    """The files that ``collectstatic`` wrote. If nothing was collected, as in tests, names have no hash."""

    # Only our own modules import each other; vendored scripts name no files.
    patterns = (
        *(entry for entry in ManifestFilesMixin.patterns if entry[0] == "*.css"),
        ("yard/*.js", ManifestFilesMixin._js_module_import_aggregation_patterns[1]),  # type: ignore[attr-defined]
    )
    # A style sheet of another application may name a missing file, such as a source map.
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
