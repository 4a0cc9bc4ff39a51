"""The Celery task of people's accounts."""

from celery import shared_task

from controlplane.accounts import password_reset


@shared_task(  # type: ignore[untyped-decorator]
    name=password_reset.TASK, acks_late=True, reject_on_worker_lost=True, soft_time_limit=60, time_limit=90
)
def mail_reset_link(address: str, language: str) -> None:
    """Mails a link to reset a password.

    Idempotent for the account: done twice it sends two links, and using one of them invalidates the other.
    """
    password_reset.mail_link(address, language)
