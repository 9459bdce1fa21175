"""What happens beside the requests."""

from datetime import date, timedelta

from django.core.mail import send_mail
from django.utils import timezone

from shop.models import Order, Report
from stowhand.django import task


@task(queue_name="mail", max_attempts=10, timeout="30s")
def confirm(order_id: int) -> str:
    """A mail that cannot be sent is sent again later."""
    order = Order.objects.get(pk=order_id)
    send_mail(f"Your order {order.pk}", f"One {order.item} is on its way.", None, [order.email])
    return f"told {order.email}"


@task
def report(day: str | None = None) -> int:
    """Safe to repeat: the day has one report."""
    of = date.fromisoformat(day) if day else timezone.localdate() - timedelta(days=1)
    number = Order.objects.filter(made__date=of).count()
    Report.objects.update_or_create(day=of, defaults={"orders": number})
    return number
