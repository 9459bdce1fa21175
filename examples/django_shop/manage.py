"""A shop: orders, mail, and a report each night.

python manage.py migrate
python manage.py stowhand worker &
python manage.py runserver
curl -d item=lamp -d email=somebody@example.com http://127.0.0.1:8000/orders
"""

import os
import sys

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)
