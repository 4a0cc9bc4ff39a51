"""The application of people, projects and tokens."""

from django.apps import AppConfig, apps


class AccountsConfig(AppConfig):
    """Keeps the label "access" of earlier releases, by which tables and migrations are named."""

    name = "controlplane.accounts"
    label = "access"

    def ready(self) -> None:
        """Connects to the signals of passwords, second factors and sign-ins."""
        if apps.is_installed("allauth.account"):
            from controlplane.accounts import sign_in_entries

            sign_in_entries.connect()
