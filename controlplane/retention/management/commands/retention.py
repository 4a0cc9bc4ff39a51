"""Removes records that are past their retention, or prints which those are."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from controlplane.accounts.models import Project
from controlplane.retention import sweep


class Command(BaseCommand):
    help = "Removes what is older than it is kept, as the worker does every ten minutes. With --preview: only tells."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--preview", action="store_true", help="tell what would go, and remove nothing")
        parser.add_argument("--project", default="", help="with --preview: of this project only")

    def handle(self, *args: Any, preview: bool, project: str, **options: Any) -> None:
        if project and not preview:
            raise CommandError("--project goes with --preview")
        if preview:
            self._print_preview(project)
            return
        for removal in sweep.sweep():
            for kind, went in removal.went.items():
                self.stdout.write(
                    f"{removal.project or 'cluster'}: {went['rows']:,} {kind}, {went['size_bytes']:,} bytes"
                )

    def _print_preview(self, name: str) -> None:
        project = Project.objects.filter(name=name).first() if name else None
        if name and project is None:
            raise CommandError(f"there is no project {name}")
        line = "{:<12} {:<24} {:>9} {:>10} {:>18}  {}"
        self.stdout.write(line.format("KIND", "PROJECT", "DAYS", "ROWS", "BYTES", "OLDEST"))
        for due in sweep.preview(project):
            went = due.went
            days, rows = due.rule.days or "for ever", f"{went.rows:,}{'+' if due.is_cut else ''}"
            oldest = went.oldest.isoformat(timespec="seconds") if went.oldest else "-"
            of = str(due.project or "-")
            self.stdout.write(line.format(due.kind.name, of, days, rows, f"{went.size_bytes:,}", oldest))
