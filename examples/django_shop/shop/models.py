"""What the shop keeps."""

from django.db import models


class Order(models.Model):
    """An order, and the notification that told its customer of it."""

    customer = models.CharField(max_length=100)
    item = models.CharField(max_length=100)
    job_id = models.CharField(max_length=64)

    def __str__(self) -> str:
        return f"{self.item} for {self.customer}"
