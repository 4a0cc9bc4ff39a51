"""The form of the sign-in page."""

from __future__ import annotations

from allauth.account.forms import LoginForm


class SignInForm(LoginForm):
    """allauth's form, with the field names that password stores and scripts know."""

    def add_prefix(self, field_name: str) -> str:
        return str(super().add_prefix("username" if field_name == "login" else field_name))
