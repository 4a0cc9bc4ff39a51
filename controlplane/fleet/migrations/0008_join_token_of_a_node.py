"""A join token is of a pool, for new nodes, or of one node that joins again."""

from django.db import migrations, models
from django.db.models import CASCADE, Q


class Migration(migrations.Migration):
    dependencies = [("fleet", "0007_division")]

    operations = [
        migrations.AlterField("jointoken", "pool", models.ForeignKey("pools.Pool", on_delete=CASCADE, null=True)),
        migrations.AddField("jointoken", "node", models.ForeignKey("fleet.Node", on_delete=CASCADE, null=True)),
        migrations.AddConstraint(
            "jointoken",
            models.CheckConstraint(
                condition=Q(pool__isnull=False, node=None) | Q(pool=None, node__isnull=False), name="join_token_of_one"
            ),
        ),
    ]
