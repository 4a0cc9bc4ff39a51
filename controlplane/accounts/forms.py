"""The forms of the sign-in page and of a new e-mail address."""

from __future__ import annotations

from allauth.account.adapter import get_adapter
from allauth.account.forms import AddEmailForm, EmailField, LoginForm
from allauth.account.models import EmailAddress


class SignInForm(LoginForm):
    """allauth's form, with the field names that password managers and scripts know."""

    def add_prefix(self, field_name: str) -> str:
        return str(super().add_prefix("username" if field_name == "login" else field_name))


class AddressForm(AddEmailForm):
    """allauth's form, with addresses as long as its table allows, also for one that an administrator entered
    already."""

    email = EmailField(max_length=254)

    def clean_email(self) -> str:
        """The address, unless it is confirmed. Whether it belongs to another user is revealed only by the link."""
        address = get_adapter().clean_email(str(self.cleaned_data["email"]).lower())
        if EmailAddress.objects.filter(user=self.user, email=address, verified=True).exists():
            raise get_adapter().validation_error("duplicate_email")
        return str(address)
