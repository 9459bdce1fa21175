"""The app."""

from django.apps import AppConfig


class ShopConfig(AppConfig):
    """The app."""

    name = "tests.django.site.shop"
    label = "shop"
