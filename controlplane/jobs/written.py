"""What somebody wrote, kept in its order: PostgreSQL's ``jsonb`` puts the keys of a job file in one of its own."""

from __future__ import annotations

import json
from typing import Any

from django.db import models
from psycopg.types.json import Json


class WrittenField(models.JSONField):
    """A value of JSON whose keys stay in their order: a column of type ``json``, which keeps the text."""

    def db_type(self, connection: Any) -> str:
        return "json"

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        return None if value is None else Json(value)

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        return json.loads(value) if isinstance(value, str | bytes) else value
