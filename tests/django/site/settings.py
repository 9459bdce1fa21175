"""One database of each kind, each with a backend of its own. Where they are, the environment says."""

import os

SECRET_KEY = "of tests"
USE_TZ = True
DEBUG = False
ROOT_URLCONF = "tests.django.site.urls"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "stowhand.django",
    "tests.django.site.shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
STATIC_URL = "static/"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ["SITE_SQLITE"],
        "OPTIONS": {"transaction_mode": "IMMEDIATE"},
    },
    "postgres": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": os.environ["SITE_POSTGRES"],
        "HOST": os.environ["SITE_POSTGRES_HOST"],
        "USER": "postgres",
        "PORT": os.environ["SITE_POSTGRES_PORT"],
    },
    "memory": {"ENGINE": "django.db.backends.sqlite3", "NAME": "file:site?mode=memory&cache=shared"},
}
TASKS = {
    name: {
        "BACKEND": "stowhand.django.StowhandBackend",
        "QUEUES": ["default", "heavy", "light"],
        "OPTIONS": {"database": name},
    }
    for name in DATABASES
}
