"""An order is announced once it is stored, and not at all if it is rolled back.

If Redis is away then, the order stands, and the log says that its customer was not told.
"""

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_POST

from notifier import Device, InvalidNotificationError, Notification, RedisUnusableError
from notifier.django import get_notifier, send_on_commit
from shop.models import Order

SOLD_OUT = "moon"


@require_POST
def create(request: HttpRequest) -> JsonResponse:
    """Take an order. What is sold out is noticed late; then nothing is stored, and nobody is told."""
    try:
        customer, item, token = (request.POST[name] for name in ("customer", "item", "token"))
    except KeyError as error:
        return JsonResponse({"error": f"{error} is missing"}, status=422)
    device = Device("fcm", token)
    thanks = Notification(user=customer, devices=[device], title="Thank you", body=f"We pack your {item}.")
    try:
        with transaction.atomic():
            order = Order.objects.create(customer=customer, item=item, job_id=send_on_commit(thanks, robust=True))
            if item == SOLD_OUT:
                transaction.set_rollback(True)
                return JsonResponse({"error": "sold out"}, status=409)
    except InvalidNotificationError as error:
        return JsonResponse({"error": str(error)}, status=422)
    return JsonResponse({"order": order.pk}, status=201)


def show(request: HttpRequest, number: int) -> JsonResponse:
    """What became of the announcement of an order."""
    del request
    order = get_object_or_404(Order, pk=number)
    try:
        status = get_notifier().status(order.job_id)
    except RedisUnusableError:
        return JsonResponse({"error": "try again later"}, status=503)
    return JsonResponse({"item": order.item, "told": status.state if status else None})
