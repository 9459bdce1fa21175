"""SQLite, where DATABASE_NAME names no database of PostgreSQL."""

import os
from pathlib import Path

FOLDER = Path(os.environ.get("SHOP_FOLDER", Path(__file__).parent.parent))

SECRET_KEY = "of an example"
DEBUG = False
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
USE_TZ = True
TIME_ZONE = "UTC"
ROOT_URLCONF = "shop.urls"
INSTALLED_APPS = ["shop", "stowhand.django"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
EMAIL_BACKEND = "django.core.mail.backends.filebased.EmailBackend"
EMAIL_FILE_PATH = FOLDER / "mail"

if "DATABASE_NAME" in os.environ:
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": os.environ["DATABASE_NAME"],
            "HOST": os.environ.get("DATABASE_HOST", ""),
            "PORT": os.environ.get("DATABASE_PORT", ""),
            "USER": os.environ.get("DATABASE_USER", ""),
        }
    }
else:
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": FOLDER / "shop.sqlite3",
            "OPTIONS": {"transaction_mode": "IMMEDIATE"},
        }
    }

TASKS = {
    "default": {
        "BACKEND": "stowhand.django.StowhandBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"cron": {"nightly": ("0 3 * * *", "shop.tasks.report")}},
    }
}
