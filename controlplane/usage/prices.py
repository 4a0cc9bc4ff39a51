"""The price of a device on a day, as SQL that the usage of projects and the receipt of a job share."""

from __future__ import annotations

from typing import Final

# The price of each day, kind and model of ``days`` that has one: that of the longest matching part of the model's name,
# and of the same the newest that was valid on that day.
TARIFF: Final = """
SELECT t.day, t.kind, t.model, p.per_device_hour FROM ({days}) t CROSS JOIN LATERAL (
    SELECT per_device_hour FROM usage_price
    WHERE kind = t.kind AND position(lower(model) IN lower(t.model)) > 0 AND valid_from <= t.day
    ORDER BY length(model) DESC, model, valid_from DESC LIMIT 1) p
"""
