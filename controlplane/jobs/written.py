"""A JSON field that keeps the order of keys; PostgreSQL's ``jsonb`` reorders the keys of a job file."""

from __future__ import annotations

import json
from typing import Any

from django.db import models
from psycopg.types.json import Json


class WrittenField(models.JSONField):
    """A JSON value whose keys stay in their order: a column of type ``json``, which stores the text."""

    def db_type(self, connection: Any) -> str:
        return "json"

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        return None if value is None else Json(value)

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        return json.loads(value) if isinstance(value, str | bytes) else value
