"""The tables of measurements, partitioned by day: a day's partition is made ahead and dropped whole when it is old.

The default partition takes what arrives before today's partition exists, so a late housekeeping loses nothing.
"""

from django.db import migrations

SQL = """
CREATE TABLE fleet_device_sample (
    device_id uuid NOT NULL, at timestamptz NOT NULL,
    utilisation double precision, memory_used_bytes bigint, power_w double precision, temperature_c double precision,
    PRIMARY KEY (device_id, at)
) PARTITION BY RANGE (at);
CREATE TABLE fleet_device_sample_default PARTITION OF fleet_device_sample DEFAULT;
CREATE TABLE fleet_part_sample (
    part_id uuid NOT NULL, at timestamptz NOT NULL, cpu double precision, rss_bytes bigint,
    PRIMARY KEY (part_id, at)
) PARTITION BY RANGE (at);
CREATE TABLE fleet_part_sample_default PARTITION OF fleet_part_sample DEFAULT;
"""


class Migration(migrations.Migration):
    dependencies = [("fleet", "0001_initial")]
    operations = [
        migrations.RunSQL(SQL, "DROP TABLE fleet_part_sample; DROP TABLE fleet_device_sample;"),
    ]
