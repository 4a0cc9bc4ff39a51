"""Creates the rows that an empty installation needs. Running it again changes nothing except that it makes new
secrets."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand

from controlplane.accounts import audit
from controlplane.accounts import service as access
from controlplane.accounts.models import Member, Project, User
from controlplane.fleet import service as fleet
from controlplane.pools.models import Pool, PriorityClass

CLASSES = {"urgent": 1000, "high": 750, "medium": 500, "low": 250}
TOKEN_NAME = "made at the start"
# Restricted to leads of a project and staff, so that not every job is urgent.
FOR_LEADS = {"urgent"}


class Command(BaseCommand):
    help = "Makes the first user, project, pools and priority classes, and prints the secrets to begin with."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="print one JSON object")
        parser.add_argument("--storage", default="", help="folder that all nodes of the pools share")
        parser.add_argument("--keep-storage", action="store_true", help="leave the storage of pools that are there")
        parser.add_argument("--no-tokens", action="store_true", help="make no secrets")
        parser.add_argument("--nodes", type=int, default=64, help="how many nodes each join token lets in")

    def handle(self, *args: Any, **options: Any) -> None:
        with audit.command("bootstrap"):
            user, pools = self._rows(options["storage"], keep=options["keep_storage"])
            found = {} if options["no_tokens"] else self._secrets(user, pools, options["nodes"])
        if options["json"]:
            self.stdout.write(json.dumps(found))
        else:
            self.stdout.write(f"user {user}, project default, pools {', '.join(pools)} and priority classes are there")
            for name, secret in found.items():
                self.stdout.write(f"{name}: {secret}")

    def _rows(self, storage: str, keep: bool) -> tuple[User, dict[str, Pool]]:
        user, new = User.objects.get_or_create(username="admin", defaults={"is_staff": True, "is_superuser": True})
        project, _ = Project.objects.get_or_create(name="default", defaults={"description": "Where jobs go by default"})
        Member.objects.get_or_create(project=project, user=user, defaults={"role": Member.Role.LEAD})
        if new:
            user.set_unusable_password()
            user.default_project = project
            user.save()
            audit.record("user.add", user, after={"username": "admin", "is_superuser": True})
        pools = {}
        for name in ("default", "simulated"):
            pool, _ = Pool.objects.get_or_create(name=name, defaults={"storage_path": storage})
            if storage and not keep and pool.storage_path != storage:
                pool.storage_path = storage
                pool.save(update_fields=["storage_path"])
            pools[name] = pool
        for name, value in CLASSES.items():
            PriorityClass.objects.get_or_create(name=name, defaults={"value": value, "staff_only": name in FOR_LEADS})
        return user, pools

    def _secrets(self, user: User, pools: dict[str, Pool], uses: int) -> dict[str, str]:
        life = timedelta(hours=1)
        # A new installation uses the new token; the former one is revoked, since somebody else may have it.
        for former in user.tokens.filter(name=TOKEN_NAME):
            access.revoke_token(user, former.pk)
        _, token = access.make_token(user, TOKEN_NAME, scopes=access.SCOPES, life=timedelta(days=365))
        return {
            "sign_in_path": access.make_sign_in_link(user, life=timedelta(hours=12)),
            "api_token": token,
            "join_token": fleet.make_join_token(pools["default"], uses=uses, life=life),
            "simulated_join_token": fleet.make_join_token(pools["simulated"], uses=uses, life=life),
        }
