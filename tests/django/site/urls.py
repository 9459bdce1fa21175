"""No page."""

urlpatterns: list[object] = []
