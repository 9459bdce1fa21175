"""Orders are made, and looked at."""

from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt

from shop.models import Order, Report
from shop.tasks import confirm


@csrf_exempt
def orders(request: HttpRequest) -> HttpResponse:
    """The order and its mail are there together, or neither is."""
    with transaction.atomic():
        order = Order.objects.create(item=request.POST["item"], email=request.POST["email"])
        order.mail = confirm.enqueue(order.pk).id
        order.save()
        if order.item == "sold out":
            transaction.set_rollback(True)
            return HttpResponseBadRequest("There is none left.\n")
    return JsonResponse({"order": order.pk})


def order(request: HttpRequest, pk: int) -> HttpResponse:
    """What became of its mail."""
    found = get_object_or_404(Order, pk=pk)
    mail = confirm.get_result(found.mail)
    return JsonResponse({"item": found.item, "mail": mail.status, "attempts": mail.attempts})


def reports(request: HttpRequest) -> HttpResponse:
    """By day."""
    return JsonResponse({str(one.day): one.orders for one in Report.objects.order_by("day")})
