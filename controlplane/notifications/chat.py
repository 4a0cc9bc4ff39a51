"""Messages for the incoming webhooks of chats, and what their answers mean.

Slack, Feishu, DingTalk and WeCom take a short text in JSON, each under another name. The last three answer 200 also
where they refuse, with a code in the body. Robots of Feishu and DingTalk may check a signature: of Feishu it is in the
body (https://open.feishu.cn/document/client-docs/bot-v3/add-custom-bot), of DingTalk in the address
(https://open.dingtalk.com/document/robots/customize-robot-security-settings). WeCom has none.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlencode

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
    """Return the message that tells a chat of a job's new state, of another event of it or of a budget, in the
    language of the installation."""
    with override(settings.LANGUAGE_CODE):
        if "budget" in job:
            said = _("{level} % of a budget of project {project} are used: {used_hours} of {hours} hours.").format_map(
                job
            )
            return _BODIES[chat](f"{said}\n{settings.PUBLIC_URL}/quota?project={job['project']}")
        if "number" not in job:
            said = _("This is a test of webhook {webhook} of project {project}.").format_map(dict(job))
            return _BODIES[chat](f"{said}\n{settings.PUBLIC_URL}/webhooks?project={job['project']}")
        what = str(job.get("event") or job["state"]).replace("_", " ").upper()
        said = _("Job #{number} {name} of project {project}: {state}").format_map({**job, "state": what})
    cause = f" ({job['cause']})" if job.get("cause") else ""
    text = f"{said}{cause}\n{settings.PUBLIC_URL}/jobs/{job['number']}"
    # Some chats read <...> as a call for everybody in the room; who names a job may not make one.
    return _BODIES[chat](text.replace("<", "").replace(">", ""))


def signed(chat: str, url: str, message: dict[str, Any], secret: bytes, at: float) -> tuple[str, dict[str, Any]]:
    """Return address and message with the signature that the chat's robot checks. ``at`` is now, in seconds."""
    if chat == Webhook.Format.FEISHU:
        stamp = str(int(at))
        sign = _digest(f"{stamp}\n".encode() + secret, b"")
        return url, {"timestamp": stamp, "sign": sign, **message}
    stamp = str(round(at * 1000))
    sign = _digest(secret, f"{stamp}\n".encode() + secret)
    return f"{url}{'&' if '?' in url else '?'}{urlencode({'timestamp': stamp, 'sign': sign})}", message


def _digest(key: bytes, text: bytes) -> str:
    return base64.b64encode(hmac.new(key, text, hashlib.sha256).digest()).decode()


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
