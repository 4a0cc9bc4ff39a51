"""Settings of the gateway: those of the control plane, less what only people and their browsers need.

They keep the process small. Same database, same Redis, same secrets.
"""

from controlplane.settings import *  # noqa: F403

INSTALLED_APPS = [
    "controlplane.accounts",
    "controlplane.pools",
    "controlplane.fleet",
    "controlplane.jobs",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.postgres",
]
MIDDLEWARE = [
    "controlplane.wellformed.WellFormed",
    "django.middleware.security.SecurityMiddleware",
    "django.middleware.common.CommonMiddleware",
]
TEMPLATES = []
ROOT_URLCONF = "controlplane.gateway.urls"
ASGI_APPLICATION = "controlplane.gateway.asgi.application"
