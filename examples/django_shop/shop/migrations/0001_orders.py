"""The table of the orders."""

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """Creates it."""

    initial = True
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar = [
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("customer", models.CharField(max_length=100)),
                ("item", models.CharField(max_length=100)),
                ("job_id", models.CharField(max_length=64)),
            ],
        ),
    ]
