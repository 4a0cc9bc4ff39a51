"""The application of people, projects and tokens."""

from django.apps import AppConfig


class AccountsConfig(AppConfig):
    """Keeps the label "access" of earlier releases, by which tables and migrations are named."""

    name = "controlplane.accounts"
    label = "access"
