"""Messages for the incoming webhooks of chats, and what their answers mean.

Slack, Feishu, DingTalk and WeCom take a short text in JSON, each under another name. The last three answer 200 also
where they refuse, with a code in the body.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from django.conf import settings
from django.utils.translation import gettext as _
from django.utils.translation import override

from controlplane.notifications.models import Webhook
from controlplane.notifications.outbound import NotDelivered

_BODIES: Final[Mapping[str, Callable[[str], dict[str, Any]]]] = {
    Webhook.Format.SLACK: lambda text: {"text": text},
    Webhook.Format.FEISHU: lambda text: {"msg_type": "text", "content": {"text": text}},
    Webhook.Format.DINGTALK: lambda text: {"msgtype": "text", "text": {"content": text}},
    Webhook.Format.WECOM: lambda text: {"msgtype": "text", "text": {"content": text}},
}
_CODES: Final = {Webhook.Format.FEISHU: "code", Webhook.Format.DINGTALK: "errcode", Webhook.Format.WECOM: "errcode"}


def message(chat: str, job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the message that tells a chat of a job's new state, or of another event of it, in the language of the
    installation."""
    with override(settings.LANGUAGE_CODE):
        if "number" not in job:
            said = _("This is a test of webhook {webhook} of project {project}.").format_map(dict(job))
            return _BODIES[chat](f"{said}\n{settings.PUBLIC_URL}/webhooks?project={job['project']}")
        what = str(job.get("event") or job["state"]).replace("_", " ").upper()
        said = _("Job #{number} {name} of project {project}: {state}").format_map({**job, "state": what})
    cause = f" ({job['cause']})" if job.get("cause") else ""
    text = f"{said}{cause}\n{settings.PUBLIC_URL}/jobs/{job['number']}"
    # Some chats read <...> as a call for everybody in the room; who names a job may not make one.
    return _BODIES[chat](text.replace("<", "").replace(">", ""))


def check(chat: str, answer: bytes) -> None:
    """Raise NotDelivered unless this answer says that the chat took the message."""
    name = _CODES.get(Webhook.Format(chat))
    if name is None:
        return
    try:
        told = msgspec.json.decode(answer, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise NotDelivered("unreadable") from None
    code = told.get(name)
    if type(code) is not int:
        raise NotDelivered("unreadable")
    if code != 0:
        raise NotDelivered(f"refused_{code}"[:40])
