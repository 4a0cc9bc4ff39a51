"""Settings of the gateway: those of the control plane, without what only people and their browsers need.

This keeps the process small. Database, Redis and secrets are the same.
"""

from controlplane.settings import *  # noqa: F403

INSTALLED_APPS = [
    "controlplane.accounts",
    "controlplane.pools",
    "controlplane.fleet",
    "controlplane.providers",
    "controlplane.jobs",
    "controlplane.local_jobs",
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
