"""Claims on partitions of a device: no two open ones overlap, and an exclusive device may be given in partitions too."""

import django.contrib.postgres.fields.ranges
from django.db import migrations, models

OPENED = """
CREATE OR REPLACE FUNCTION yard_claims_opened() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- Devices are locked in one order, so that two placements cannot wait for each other.
    PERFORM 1 FROM fleet_device WHERE id IN (SELECT device_id FROM opened) ORDER BY id FOR UPDATE;
    IF EXISTS (
        SELECT 1 FROM opened o JOIN fleet_device d ON d.id = o.device_id
        WHERE d.mode = 'exclusive' AND d.kind <> 'cpu' AND o.closed_at IS NULL AND o.milli <> d.capacity_milli{whole}
    ) THEN
        RAISE EXCEPTION 'an exclusive device is claimed whole' USING ERRCODE = 'check_violation';
    END IF;{apart}
    UPDATE fleet_device d SET claimed_milli = d.claimed_milli + s.milli,
        claimed_memory_bytes = d.claimed_memory_bytes + s.memory_bytes
    FROM (SELECT device_id, sum(milli) AS milli, sum(memory_bytes) AS memory_bytes
          FROM opened WHERE closed_at IS NULL GROUP BY device_id) s
    WHERE d.id = s.device_id;
    RETURN NULL;
END $$;
"""

CHANGED = """
CREATE OR REPLACE FUNCTION yard_claims_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT 1 FROM before b JOIN after a ON a.id = b.id
        WHERE b.closed_at IS NOT NULL AND a.closed_at IS DISTINCT FROM b.closed_at
           OR a.device_id <> b.device_id OR a.milli <> b.milli OR a.memory_bytes <> b.memory_bytes{same}
    ) THEN
        RAISE EXCEPTION 'a claim can only be closed, once' USING ERRCODE = 'check_violation';
    END IF;
    PERFORM 1 FROM fleet_device WHERE id IN (SELECT device_id FROM after) ORDER BY id FOR UPDATE;
    UPDATE fleet_device d SET claimed_milli = d.claimed_milli - s.milli,
        claimed_memory_bytes = d.claimed_memory_bytes - s.memory_bytes
    FROM (SELECT a.device_id, sum(a.milli) AS milli, sum(a.memory_bytes) AS memory_bytes
          FROM before b JOIN after a ON a.id = b.id
          WHERE b.closed_at IS NULL AND a.closed_at IS NOT NULL GROUP BY a.device_id) s
    WHERE d.id = s.device_id;
    RETURN NULL;
END $$;
"""
PARTITION = " AND o.partition = ''"
# The devices are locked, so nobody else opens a claim on them meanwhile. An exclusion constraint would say the same, but
# needs an extension (btree_gist) that not every installation of PostgreSQL has.
APART = """
    IF EXISTS (
        SELECT 1 FROM opened o JOIN jobs_claim c ON c.device_id = o.device_id AND c.id <> o.id
        WHERE o.slots IS NOT NULL AND o.closed_at IS NULL AND c.closed_at IS NULL AND c.slots && o.slots
    ) THEN
        RAISE EXCEPTION 'partitions of a device do not overlap' USING ERRCODE = 'exclusion_violation';
    END IF;"""
SAME = """
           OR (a.partition, a.slots, a.partition_uuid) IS DISTINCT FROM (b.partition, b.slots, b.partition_uuid)"""


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0005_part_share"),
        ("fleet", "0007_division"),
    ]

    operations = [
        migrations.AddField(
            model_name="claim",
            name="partition",
            field=models.CharField(blank=True, max_length=40, default=""),
            preserve_default=False,
        ),
        migrations.AddField(
            model_name="claim",
            name="slots",
            field=django.contrib.postgres.fields.ranges.IntegerRangeField(null=True),
        ),
        migrations.AddField(
            model_name="claim",
            name="partition_uuid",
            field=models.CharField(blank=True, max_length=120, default=""),
            preserve_default=False,
        ),
        migrations.AddConstraint(
            model_name="claim",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("partition", ""), ("partition_uuid", ""), ("slots", None)),
                    models.Q(
                        models.Q(("partition", ""), _negated=True), ("slots__isempty", False), ("slots__isnull", False)
                    ),
                    _connector="OR",
                ),
                name="claim_of_a_partition_has_slots",
            ),
        ),
        migrations.AddConstraint(
            model_name="claim",
            constraint=models.UniqueConstraint(
                condition=models.Q(("closed_at", None), models.Q(("partition_uuid", ""), _negated=True)),
                fields=("device", "partition_uuid"),
                name="partition_held_once",
            ),
        ),
        migrations.RunSQL(
            OPENED.format(whole=PARTITION, apart=APART) + CHANGED.format(same=SAME),
            OPENED.format(whole="", apart="") + CHANGED.format(same=""),
        ),
    ]
