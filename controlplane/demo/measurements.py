"""Statements that measure devices and parts again: pages show no measurement that is a minute old."""

from __future__ import annotations

from typing import Final

# Every three seconds since the last measurement, and once now.
_MOMENTS: Final = """
LATERAL (SELECT generate_series(last.at + interval '3 s', now(), interval '3 s') UNION SELECT now()) AS due(moment)
"""
DEVICES: Final = f"""
INSERT INTO fleet_device_sample (device_id, at, utilisation, memory_used_bytes, power_w, temperature_c)
SELECT device_id, moment, least(1, utilisation * (0.98 + 0.04 * random())), memory_used_bytes, power_w, temperature_c
FROM (SELECT DISTINCT ON (device_id) * FROM fleet_device_sample ORDER BY device_id, at DESC) AS last, {_MOMENTS}
"""
PARTS: Final = f"""
INSERT INTO fleet_part_sample (part_id, at, cpu, rss_bytes)
SELECT part_id, moment, cpu, rss_bytes
FROM (SELECT DISTINCT ON (part_id) * FROM fleet_part_sample ORDER BY part_id, at DESC) AS last, {_MOMENTS}
"""
REPORTED: Final = "UPDATE fleet_node SET last_report_at = now() WHERE simulated AND state IN ('READY', 'DRAINING')"
