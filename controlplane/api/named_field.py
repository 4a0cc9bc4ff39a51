"""A field that names a row, such as a project; a name that nothing has is refused with those that there are."""

from __future__ import annotations

from typing import Any, Final, NoReturn

from django.utils.translation import gettext as _
from rest_framework import serializers

from controlplane.accounts.models import User

MOST_TOLD: Final = 20


class NamedField(serializers.SlugRelatedField):
    """A project, pool, group or user by its name. For people who may see all of them; users are not listed."""

    def fail(self, key: str, **values: Any) -> NoReturn:
        if key == "does_not_exist":
            raise serializers.ValidationError(self._refusal(str(values["value"])[:63]), code=key)
        super().fail(key, **values)

    def _refusal(self, name: str) -> str:
        rows = self.get_queryset()
        assert rows is not None, "it is written to"
        if rows.model is User:
            return _("There is no user {name}.").format(name=name)
        known = list(rows.order_by(self.slug_field).values_list(self.slug_field, flat=True)[: MOST_TOLD + 1])
        if not known:
            return _("There is none called {name}, and none at all yet.").format(name=name)
        told = ", ".join(known[:MOST_TOLD]) + (", …" if len(known) > MOST_TOLD else "")
        return _("There is none called {name}; there are {known}.").format(name=name, known=told)
