"""The pages."""

from django.urls import path

from shop import views

urlpatterns = [
    path("orders", views.orders),
    path("orders/<int:pk>", views.order),
    path("reports", views.reports),
]
