"""Settings of the control plane, all from the environment, safe by default.

DATABASE_URL, REDIS_URL and a secret key are required; nothing else is. See docs/reference/settings.md.
"""

from __future__ import annotations

import ipaddress
import os
import re
import sys
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from csp.constants import NONE, SELF
from django.core.exceptions import ImproperlyConfigured

from controlplane import clusters
from controlplane.accounts.mail_server import read_mail_server
from controlplane.accounts.providers import read_directory, read_providers
from controlplane.session_origins import SessionOrigins
from scheduler.core.model.kinds import AMOUNTS

VERSION = "0.1.0"
BASE_DIR = Path(__file__).resolve().parent.parent
FRONTEND = BASE_DIR / "frontend"
HOME = Path(os.environ.get("YARD_HOME") or Path.home() / ".switchyard")
BLOBS = Path(os.environ.get("YARD_BLOBS") or HOME / "blobs")
LOGS = Path(os.environ.get("YARD_LOGS") or BLOBS / "logs")
DECISIONS = Path(os.environ.get("YARD_DECISIONS") or HOME / "decisions")
DECISIONS_KEEP_S = float(os.environ.get("YARD_DECISIONS_DAYS", "7")) * 86_400
DECISIONS_KEEP_BYTES = int(float(os.environ.get("YARD_DECISIONS_GIB", "2")) * 2**30)


def _secret_key() -> str:
    """The signing key, from YARD_SECRET_KEY or from the file that YARD_SECRET_KEY_FILE names."""
    if key := os.environ.get("YARD_SECRET_KEY"):
        return key
    path = os.environ.get("YARD_SECRET_KEY_FILE")
    if path and Path(path).is_file():
        return Path(path).read_text().strip()
    raise ImproperlyConfigured(
        "No secret key: set YARD_SECRET_KEY_FILE to a file with at least 50 random characters (or YARD_SECRET_KEY). "
        "./script/up generates one."
    )


def _database(url: str) -> dict[str, Any]:
    """A Django database entry from a postgresql:// address; ``?host=/dir`` names a Unix socket's folder."""
    parts = urlsplit(url)
    if parts.scheme not in {"postgresql", "postgres"}:
        raise ImproperlyConfigured(
            f"DATABASE_URL must start with postgresql://, not {parts.scheme or 'nothing'}:// "
            "(PostgreSQL is the only database)"
        )
    query = dict(parse_qsl(parts.query))
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.lstrip("/")) or "switchyard",
        "USER": unquote(parts.username or query.pop("user", "")),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": query.pop("host", None) or parts.hostname or "",
        "PORT": str(parts.port or query.pop("port", "") or ""),
        # libpq reads the password there itself.
        "OPTIONS": {"passfile": query["passfile"]} if "passfile" in query else {},
    }


def _program() -> str:
    """The name of this process in PostgreSQL's lists: the program and its first arguments."""
    program = Path(sys.argv[0])
    name = program.parent.name if program.name == "__main__.py" else program.stem
    words = [word for word in sys.argv[1:] if not word.startswith("-")][:2]
    return " ".join(["yard", name, *words]).encode("ascii", "replace").decode()[:63]


def _flag(name: str) -> bool:
    return os.environ.get(name, "").lower() in {"1", "true", "yes", "on"}


def _list(name: str, default: str = "") -> list[str]:
    return [item.strip() for item in os.environ.get(name, default).split(",") if item.strip()]


def _storages(url: str, folder: Path, logs: Path) -> dict[str, dict[str, Any]]:
    """The storages: in files below ``folder`` and ``logs``, or in the bucket of S3 at ``url``.

    Such as ``s3://bucket/prefix?endpoint=https://minio.example.org``. Credentials are found as boto3 finds them.
    """
    if not url:
        usual = {"file_permissions_mode": 0o600, "directory_permissions_mode": 0o700, "allow_overwrite": True}
        backend = "django.core.files.storage.FileSystemStorage"
        return {
            "default": {"BACKEND": backend, "OPTIONS": {**usual, "location": folder / "files"}},
            "bundles": {"BACKEND": backend, "OPTIONS": {**usual, "location": folder}},
            "simulations": {"BACKEND": backend, "OPTIONS": {**usual, "location": folder / "simulations"}},
            "traces": {"BACKEND": backend, "OPTIONS": {**usual, "location": folder / "traces"}},
            "archive": {
                "BACKEND": "controlplane.storage.DurableFiles",
                "OPTIONS": {"location": logs / "archive", "allow_overwrite": True},
            },
        }
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    unknown = sorted(query.keys() - {"endpoint", "region", "addressing"})
    if parts.scheme != "s3" or not parts.hostname or unknown:
        raise ImproperlyConfigured(
            f'YARD_STORAGE_URL is "{url}"; it must be like s3://bucket/prefix?endpoint=https://host&region=name'
            "&addressing=path (each of the three may be left out)"
        )
    try:
        from botocore.config import Config
    except ImportError:
        raise ImproperlyConfigured('YARD_STORAGE_URL needs the extra s3: pip install "switchyard[s3]"') from None
    patience = Config(
        connect_timeout=5,
        read_timeout=30,
        retries={"max_attempts": 2},
        s3={"addressing_style": query.get("addressing", "auto")},
    )
    objects_usual: dict[str, Any] = {
        "bucket_name": parts.hostname,
        "endpoint_url": query.get("endpoint"),
        "region_name": query.get("region"),
        "client_config": patience,
        "file_overwrite": True,
        "default_acl": None,
        # Larger objects are buffered in a temporary file while they are read.
        "max_memory_size": 2**20,
    }
    prefix = unquote(parts.path.strip("/"))

    def objects(name: str) -> dict[str, Any]:
        location = f"{prefix}/{name}" if prefix else name
        return {"BACKEND": "storages.backends.s3.S3Storage", "OPTIONS": {**objects_usual, "location": location}}

    names = ("bundles", "simulations", "traces", "archive")
    return {"default": objects("files")} | {name: objects(name) for name in names}


SECRET_KEY = _secret_key()
# Former keys, a line each, newest first, with which signatures and ciphertexts remain valid. YARD_FORMER_KEYS_FILE.
_FORMER = os.environ.get("YARD_FORMER_KEYS_FILE")
SECRET_KEY_FALLBACKS = Path(_FORMER).read_text().split() if _FORMER else []
# The keys that wrap the data keys of secrets, newest first; never in the database. See controlplane/accounts/keys.py.
SECRETS_KEY_FILE = Path(os.environ.get("YARD_SECRETS_KEY_FILE") or HOME / "secrets.keys")
SECRETS_KEY_WRAPPER = os.environ.get("YARD_SECRETS_KEY_WRAPPER") or "controlplane.accounts.keys.KeyFile"
DEBUG = _flag("YARD_DEBUG")
PUBLIC_URL = os.environ.get("YARD_URL", "http://127.0.0.1:8470")
_PUBLIC = urlsplit(PUBLIC_URL)
if _PUBLIC.scheme not in {"http", "https"} or not _PUBLIC.hostname:
    raise ImproperlyConfigured(f'YARD_URL is "{PUBLIC_URL}"; it must be an address like https://yard.example.org')
BEHIND_TLS = _PUBLIC.scheme == "https"
# Where agents reach the gateway. Behind a proxy that leads /agent/ there, that is the public address.
AGENTS_URL = os.environ.get("YARD_AGENTS_URL") or PUBLIC_URL
# The public address is accepted as host and as origin of forms, whatever a proxy does to the Host header.
_PUBLIC_HOST = f"[{_PUBLIC.hostname}]" if ":" in _PUBLIC.hostname else _PUBLIC.hostname
ALLOWED_HOSTS = list(dict.fromkeys([*_list("YARD_ALLOWED_HOSTS", "127.0.0.1,localhost,[::1]"), _PUBLIC_HOST]))
CSRF_TRUSTED_ORIGINS = list(dict.fromkeys([*_list("YARD_TRUSTED_ORIGINS"), f"{_PUBLIC.scheme}://{_PUBLIC.netloc}"]))


def _session_origins() -> SessionOrigins | None:
    """The origins of web ports of jobs; None where there is none that is separate from the dashboard."""
    url, trusted = os.environ.get("YARD_SESSIONS_URL", ""), [*ALLOWED_HOSTS, *CSRF_TRUSTED_ORIGINS]
    public = str(_PUBLIC.hostname)
    if not url:
        found = SessionOrigins.beside(PUBLIC_URL)
        return None if found is None or found.fault(public, trusted) else found
    try:
        found = SessionOrigins.read(url)
    except ValueError as fault:
        raise ImproperlyConfigured(f"YARD_SESSIONS_URL: {fault}") from None
    if why := found.fault(public, trusted):
        raise ImproperlyConfigured(f"YARD_SESSIONS_URL: {why}; see docs/how-to/sessions.md")
    return found


SESSION_ORIGINS = _session_origins()
# The command for a new sign-in link, which depends on how the server was started.
SIGN_IN_COMMAND = os.environ.get("YARD_SIGN_IN_COMMAND", "python manage.py sign_in_link")
CLUSTER_NAME = os.environ.get("YARD_CLUSTER", "yard")
# Clusters that the pages lead to; this one may be among them, so that all have the same list.
try:
    CLUSTERS = clusters.parsed(_list("YARD_CLUSTERS"))
except ValueError as fault:
    raise ImproperlyConfigured(
        f"YARD_CLUSTERS: {fault}; it is like east=https://east.example.org,west=https://west.example.org"
    ) from None
# Kinds of devices that quotas and job files may name before a node has one.
DEVICE_KINDS = frozenset(_list("YARD_DEVICE_KINDS"))
if reserved := sorted(DEVICE_KINDS & AMOUNTS):
    raise ImproperlyConfigured(
        f"YARD_DEVICE_KINDS names {', '.join(reserved)}, which stages ask of a node as a whole; call devices otherwise"
    )
if wrong := sorted(kind for kind in DEVICE_KINDS if not re.fullmatch(r"[a-z][a-z0-9-]{0,19}", kind)):
    raise ImproperlyConfigured(
        f"YARD_DEVICE_KINDS names {', '.join(wrong)}; a kind has 1 to 20 lower-case letters, digits and -, such as tpu"
    )

# The kinds of providers that operators may set up. "local" runs stages as the user of the worker, on its host.
PROVIDER_KINDS = frozenset(_list("YARD_PROVIDER_KINDS", "slurm,ray,kubernetes,command"))
# The folder with the programs of the kind "command", which only the administrator of the server writes.
PROVIDER_PROGRAMS = os.environ.get("YARD_PROVIDER_PROGRAMS", "")
# The folder with a folder for each engine that is asked over HTTP: its address, its token and its certificates.
PROVIDER_ENDPOINTS = os.environ.get("YARD_PROVIDER_ENDPOINTS", "")

INSTALLED_APPS = [
    # Before accounts, whose administration takes the place of theirs.
    "allauth",
    "allauth.account",
    "allauth.mfa",
    "allauth.socialaccount",
    "allauth.usersessions",
    "controlplane.accounts",
    "controlplane.pools",
    "controlplane.fleet",
    "controlplane.providers",
    "controlplane.jobs",
    "controlplane.sites",
    "controlplane.local_jobs",
    "controlplane.simulations",
    "controlplane.retention",
    "controlplane.notifications",
    "controlplane.observability",
    "controlplane.usage",
    "controlplane.schedules",
    "controlplane.services",
    "controlplane.functions",
    "controlplane.job_templates",
    "controlplane.pages",
    "controlplane.backup",
    "controlplane.operations",
    "controlplane.demo",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "controlplane.pages.static_files.StaticFiles",
    "django.contrib.postgres",
    "rest_framework",
    "django_filters",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "csp",
]

MIDDLEWARE = [
    # First, so that later middleware sees well-formed requests only.
    "controlplane.wellformed.WellFormed",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "controlplane.accounts.audit.middleware",
    "controlplane.accounts.time_zones.middleware",
    "allauth.account.middleware.AccountMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "controlplane.urls"
ASGI_APPLICATION = "controlplane.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [FRONTEND / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "controlplane.pages.shell.context",
            ],
        },
    }
]

# Under ASGI each request may run in another thread: a persistent connection would leak, a pool does not. The threads of
# a worker share one too, for each connection keeps plans and tables' descriptions (8 MB in PostgreSQL); what was more
# than enough for a minute is closed. Without YARD_DB_POOL each thread has its own.
_POOLED = int(os.environ.get("YARD_DB_POOL") or 0)
_DATABASE = _database(os.environ.get("DATABASE_URL", "postgresql:///switchyard"))
DATABASES = {
    "default": {
        **_DATABASE,
        "CONN_MAX_AGE": 0 if _POOLED else 600,
        "CONN_HEALTH_CHECKS": not _POOLED,
        "OPTIONS": {
            **_DATABASE["OPTIONS"],
            # Statements are planned once per connection, which halves the time of a cycle. A pooler in transaction mode
            # between here and PostgreSQL cannot do that: YARD_DB_PREPARE=0.
            "server_side_binding": True,
            "prepare_threshold": int(os.environ.get("YARD_DB_PREPARE", "3")) or None,
            "application_name": _program(),
            "options": "-c lock_timeout=3s -c statement_timeout=30s -c idle_in_transaction_session_timeout=15s",
            **({"pool": {"min_size": 1, "max_size": _POOLED, "max_idle": 60, "timeout": 5}} if _POOLED else {}),
        },
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"


def _redis(url: str) -> str:
    """The address of Redis or Valkey, with the password from the file of REDIS_PASSWORD_FILE."""
    path = os.environ.get("REDIS_PASSWORD_FILE")
    scheme, _, rest = url.partition("://")
    return f"{scheme}://:{quote(Path(path).read_text().strip(), safe='')}@{rest}" if path else url


REDIS_URL = _redis(os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0"))
_BROKER = REDIS_URL.replace("unix://", "redis+socket://", 1) if REDIS_URL.startswith("unix://") else REDIS_URL
CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {"hosts": [{"address": REDIS_URL}], "prefix": "yard"},
    }
}

# Answers of the engine and counters of requests; only data that can be computed again.
CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": REDIS_URL,
        "KEY_PREFIX": "yard",
        "OPTIONS": {
            "serializer": "controlplane.cache.JSONSerializer",
            "socket_timeout": 2,
            "socket_connect_timeout": 2,
        },
    }
}

CELERY_BROKER_URL = _BROKER
CELERY_TASK_IGNORE_RESULT = True
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_SERIALIZER = "json"
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
# A worker never gives up reconnecting, and a socket that never answers blocks no producer.
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "socket_timeout": 5,
    "socket_connect_timeout": 2,
    "socket_keepalive": not REDIS_URL.startswith("unix://"),
    "health_check_interval": 10,
    # Longer than any task that is acknowledged late may take.
    "visibility_timeout": 900,
}
# CONN_MAX_AGE says how long a worker keeps its connection to the database, not the number of its tasks.
CELERY_DB_REUSE_MAX = 10**9
# The first word of a task's name is its queue. Tasks are in the module "tasks" of their package.
QUEUES = ("scheduling", "fleet", "questions", "simulations", "maintenance")
CELERY_TASK_ROUTES = {f"{queue}.*": {"queue": queue} for queue in QUEUES}
CELERY_TASK_DEFAULT_QUEUE = "maintenance"
# What beat sends, every so many seconds. A message that waited for so long is dropped: the next is there.
# Where traces of jobs are sent, by OTLP over HTTP; nowhere, if empty.
TRACES_URL = os.environ.get("YARD_TRACES_URL", "")
if TRACES_URL and (not TRACES_URL.startswith(("http://", "https://")) or find_spec("opentelemetry") is None):
    raise ImproperlyConfigured(
        "YARD_TRACES_URL is the address of an OpenTelemetry collector, such as http://127.0.0.1:4318, and needs the "
        "package opentelemetry-exporter-otlp-proto-http"
    )

CELERY_BEAT_SCHEDULE = {
    task: {"task": task, "schedule": every_s, "options": {"expires": every_s}}
    for task, every_s in {
        "scheduling.cycle": 1.5,
        "fleet.watch": 1.5,
        "maintenance.housekeeping": 60.0,
        "maintenance.invariants": 60.0,
        "maintenance.notices": 60.0,
        "maintenance.webhooks": 5.0,
        "maintenance.retention": 600.0,
        "maintenance.archive": 60.0,
        "maintenance.usage": 60.0,
        "maintenance.idle": 60.0,
        "maintenance.schedules": 5.0,
        "maintenance.services": 1.0,
        "maintenance.sources": 5.0,
        "maintenance.operations": 5.0,
        "maintenance.pilots": 5.0,
        "maintenance.sites": 2.0,
        **({"maintenance.traces": 10.0} if TRACES_URL else {}),
    }.items()
}

# The secret by which routers of services prove themselves; without the file there are none.
_ROUTER_KEY_FILE = os.environ.get("YARD_ROUTER_KEY_FILE", "")
ROUTER_KEY = Path(_ROUTER_KEY_FILE).read_text().strip() if _ROUTER_KEY_FILE else ""
if _ROUTER_KEY_FILE and len(ROUTER_KEY) < 32:
    raise ImproperlyConfigured(f"{_ROUTER_KEY_FILE} must hold 32 characters at least")
# Where people reach the router, for pages and commands that name the address of a service.
ROUTER_URL = os.environ.get("YARD_ROUTER_URL", "").rstrip("/")

# Where a worker says every four seconds that it is alive and has its broker, for a check that need not start Python's
# half of the world to ask. Unset, nothing is written.
ALIVE_FILE = os.environ.get("YARD_ALIVE_FILE", "")

# Timers of the link in seconds (see agents.protocol.Timers); tests and small clusters may shorten them:
# YARD_TIMERS="report_s=1,suspect_s=3,lost_s=6,lease_s=8".
LINK_TIMERS = {name: float(value) for name, _, value in (item.partition("=") for item in _list("YARD_TIMERS"))}

# Nodes get a new credential through their own link when theirs is so old.
NODE_CREDENTIAL_LIFE = timedelta(days=int(os.environ.get("YARD_NODE_CREDENTIAL_DAYS", "30")))
# Of sessions inside running stages: how long nothing may move in one (0: for ever), and how many may be open at once.
SESSION_IDLE_S = float(os.environ.get("YARD_SESSION_IDLE_S", "1800"))
SESSIONS_PER_USER = int(os.environ.get("YARD_SESSIONS_PER_USER", "8"))
CONNECTIONS_PER_USER = int(os.environ.get("YARD_CONNECTIONS_PER_USER", "64"))
CONNECTIONS_PER_NODE = int(os.environ.get("YARD_CONNECTIONS_PER_NODE", "128"))
# New connections through one forwarded port, a second on average over ten seconds.
CONNECTIONS_PER_S = int(os.environ.get("YARD_CONNECTIONS_PER_S", "20"))
SESSIONS_PER_NODE = int(os.environ.get("YARD_SESSIONS_PER_NODE", "32"))

# Requests a second that one person may send, over ten seconds: those that read, those that write; and one address that
# names nobody.
RATE_LIMITS = {"read": 200, "write": 500, "search": 6, "anonymous": 100}
for _limit in _list("YARD_RATE_LIMITS"):
    _name, _, _value = _limit.partition("=")
    if _name not in RATE_LIMITS or not _value.isdecimal() or not 0 < int(_value) <= 1_000_000:
        raise ImproperlyConfigured(f'YARD_RATE_LIMITS has "{_limit}"; it is like read=200,write=500,search=6')
    RATE_LIMITS[_name] = int(_value)


def _networks(name: str) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    try:
        return tuple(ipaddress.ip_network(one) for one in _list(name))
    except ValueError as fault:
        raise ImproperlyConfigured(f"{name}: {fault}; it is like 10.1.2.0/24,fd00::/64") from None


# Networks whose hosts read /metrics without a token: where Prometheus is, and nobody else.
METRICS_NETWORKS = _networks("YARD_METRICS_NETWORKS")
# Private networks that webhooks may reach, also over plain HTTP. Public addresses need no entry.
WEBHOOK_NETWORKS = _networks("YARD_WEBHOOK_NETWORKS")
# Private networks whose git servers the workers may ask for code, also over plain HTTP. Public ones need no entry.
GIT_NETWORKS = _networks("YARD_GIT_NETWORKS")
# Private networks in which other Switchyards may be asked, also over plain HTTP. Public ones need no entry.
SITE_NETWORKS = _networks("YARD_SITE_NETWORKS")
# The folder that has for a site, below its name, ca.pem, client.pem and client.key; none of them must be there.
SITE_FILES = os.environ.get("YARD_SITE_FILES", "")
# Sockets that one person's browsers may have open at once on one server: a socket for each tab.
SOCKETS_PER_USER = int(os.environ.get("YARD_SOCKETS_PER_USER", "64"))

# Bodies of requests: after the grace they keep to so many bytes a second; how many unfinished ones an address, or a
# person or node beside it, may have at once on one server, and of those that are more than a MiB.
BODY_GRACE_S = float(os.environ.get("YARD_BODY_GRACE_S", "10"))
BODY_BYTES_PER_S = int(os.environ.get("YARD_BODY_BYTES_PER_S", "32768"))
UNFINISHED_BODIES = int(os.environ.get("YARD_UNFINISHED_BODIES", "64"))
UNFINISHED_UPLOADS = int(os.environ.get("YARD_UNFINISHED_UPLOADS", "8"))

# How long the log of a part may become; and how much room the disk must have that uploads and logs are taken.
LOG_MAX_BYTES = int(os.environ.get("YARD_LOG_MAX_BYTES", str(2**30)))
# So long after its end the log of a part goes into the storage "archive".
LOG_ARCHIVE_AFTER_S = float(os.environ.get("YARD_LOG_ARCHIVE_AFTER_S", "3600"))
MIN_FREE_BYTES = int(os.environ.get("YARD_MIN_FREE_BYTES", str(2**30)))
# What one person may have of bundles, and of simulations: how many at once, kept, and how many bytes of these; and how
# many simulations run at once in all.
BUNDLE_BYTES_PER_USER = int(os.environ.get("YARD_BUNDLE_BYTES_PER_USER", str(20 * 2**30)))
SIMULATIONS_PER_USER = int(os.environ.get("YARD_SIMULATIONS_PER_USER", "2"))
SIMULATIONS_AT_ONCE = int(os.environ.get("YARD_SIMULATIONS_AT_ONCE", "4"))
SIMULATIONS_KEPT = int(os.environ.get("YARD_SIMULATIONS_KEPT", "50"))
SIMULATION_BYTES_PER_USER = int(os.environ.get("YARD_SIMULATION_BYTES_PER_USER", str(256 * 2**20)))


def _days(name: str, usual: dict[str, int]) -> dict[str, int]:
    """Numbers of days by kind, of which the environment may change some: YARD_RETENTION_DAYS=logs=30,jobs=400."""
    for item in _list(name):
        kind, _, value = item.partition("=")
        if kind not in usual or not value.isdecimal() or int(value) > 36_500:
            raise ImproperlyConfigured(f'{name} has "{item}"; it is like logs=30,jobs=400, of {", ".join(usual)}')
        usual[kind] = int(value)
    return usual


# For how many days what has ended is kept, 0 for ever, and the least that projects may choose.
RETENTION_DAYS = _days(
    "YARD_RETENTION_DAYS",
    {
        "logs": 90, "events": 400, "jobs": 730, "decisions": 30, "bundles": 30, "simulations": 90, "idempotency": 1,
        "samples": 7, "audit": 730, "removals": 730, "traces": 90,
    },
)  # fmt: skip
RETENTION_LEAST_DAYS = _days("YARD_RETENTION_LEAST_DAYS", {"logs": 1, "events": 1, "jobs": 31, "audit": 180})
# Laws that ask for an audit log ask for half a year; idempotency keys are promised for a day, and shares and prices are
# reckoned over thirty.
for _kind, _least in {**RETENTION_LEAST_DAYS, "bundles": 1, "idempotency": 1, "samples": 1}.items():
    if 0 < RETENTION_DAYS[_kind] < _least or (_kind == "samples" and not RETENTION_DAYS[_kind]):
        raise ImproperlyConfigured(f"YARD_RETENTION_DAYS keeps {_kind} for less than {_least} days")
# How many bytes of logs a project may have, 0 without limit: above that the oldest of ended stages go first.
LOG_BYTES_PER_PROJECT = int(os.environ.get("YARD_LOG_BYTES_PER_PROJECT", str(50 * 2**30)))

# The currency of the price table; and the grams of CO2 that a kilowatt-hour stands for, empty where that is not shown.
CURRENCY = os.environ.get("YARD_CURRENCY", "EUR")
if not re.fullmatch(r"[A-Za-z]{3}", CURRENCY):
    raise ImproperlyConfigured(f'YARD_CURRENCY is "{CURRENCY}"; it must be a code of three letters, such as EUR')
_CO2 = os.environ.get("YARD_CO2_G_PER_KWH", "")
if _CO2 and not re.fullmatch(r"[0-9]{1,5}(\.[0-9]+)?", _CO2):
    raise ImproperlyConfigured(f'YARD_CO2_G_PER_KWH is "{_CO2}"; it must be a number of grams, such as 380')
CO2_G_PER_KWH = float(_CO2) if _CO2 else None

AUTH_USER_MODEL = "access.User"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
AUTHENTICATION_BACKENDS = ["controlplane.accounts.guard.GuardedBackend"]
LOGIN_URL = "/sign-in"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "/sign-in"

# allauth: passwords by name, second factors, providers. Guessing at passwords and links is counted by accounts.guard;
# what a person may try once they are known is counted here, in Redis, by all servers together.
ACCOUNT_ADAPTER = "controlplane.accounts.adapters.AccountAdapter"
ACCOUNT_FORMS = {
    "login": "controlplane.accounts.forms.SignInForm",
    "reset_password": "controlplane.accounts.password_reset.ResetForm",
    "user_token": "controlplane.accounts.password_reset.ResetTokenForm",
}
ACCOUNT_LOGIN_METHODS = {"username"}
ACCOUNT_SIGNUP_FIELDS = ["username*", "email", "password1*"]
ACCOUNT_EMAIL_VERIFICATION = "none"
ACCOUNT_EMAIL_NOTIFICATIONS = False
ACCOUNT_EMAIL_SUBJECT_PREFIX = f"[{CLUSTER_NAME}] "
# Strangers learn nothing about an address, and no mail is sent to unknown addresses.
ACCOUNT_PREVENT_ENUMERATION = True
ACCOUNT_EMAIL_UNKNOWN_ACCOUNTS = False
PASSWORD_RESET_TIMEOUT = 3600
# A person has one address: a new one takes the place of the one before once it is confirmed.
ACCOUNT_CHANGE_EMAIL = True
ACCOUNT_EMAIL_CONFIRMATION_EXPIRE_DAYS = 1
ACCOUNT_SESSION_REMEMBER = True
ACCOUNT_RATE_LIMITS = {
    "login": None,
    "login_failed": "60/m/ip,10/5m/key",
    "reauthenticate": "10/m/user",
    "device_code": "20/m/user,100/h/user",
    "manage_email": "3/m/user,10/h/user",
    "reset_password": "10/m/ip,5/h/key",
    "reset_password_from_key": "20/m/ip",
}
MFA_ADAPTER = "controlplane.accounts.adapters.SecondFactorAdapter"
MFA_SUPPORTED_TYPES = ["totp", "recovery_codes"]
MFA_ALLOW_UNVERIFIED_EMAIL = True

# Mail: links for forgotten passwords. Without a server nothing is sent, and no page offers it.
_MAIL = read_mail_server(os.environ)
EMAIL_BACKEND = f"django.core.mail.backends.{'smtp' if _MAIL else 'dummy'}.EmailBackend"
EMAIL_HOST = _MAIL.host if _MAIL else ""
if _MAIL:
    EMAIL_PORT, EMAIL_HOST_USER, EMAIL_HOST_PASSWORD = _MAIL.port, _MAIL.user, _MAIL.password
    EMAIL_USE_SSL, EMAIL_USE_TLS = _MAIL.tls, _MAIL.start_tls
    DEFAULT_FROM_EMAIL = SERVER_EMAIL = _MAIL.sender
EMAIL_TIMEOUT = 10

DIRECTORY = read_directory(os.environ)
OIDC_PROVIDERS = read_providers(os.environ)
SOCIALACCOUNT_ADAPTER = "controlplane.accounts.adapters.ProviderAdapter"
SOCIALACCOUNT_PROVIDERS = {"openid_connect": {"APPS": [provider.app() for provider in OIDC_PROVIDERS.values()]}}

SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_NAME = "yard_session"
CSRF_COOKIE_NAME = "yard_csrf"
CSRF_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE_SSL_REDIRECT = BEHIND_TLS
SECURE_HSTS_SECONDS = 31_536_000 if BEHIND_TLS else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = BEHIND_TLS
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
# A redirect saves no secret that came over plain HTTP already, and it would break what speaks it on purpose: a check of
# health beside the server, and agents on a private network (--plain-http).
SECURE_REDIRECT_EXEMPT = [r"^agent/v1/", r"^api/v1/version$", r"^healthz$", r"^readyz$", r"^metrics$"]
if _flag("YARD_BEHIND_PROXY"):
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
# Over plain HTTP on loopback, which is the default, the checks that ask for TLS do not apply.
SILENCED_SYSTEM_CHECKS = [] if BEHIND_TLS else ["security.W004", "security.W008", "security.W012", "security.W016"]
X_FRAME_OPTIONS = "DENY"
DATA_UPLOAD_MAX_MEMORY_SIZE = 8 * 2**20
BUNDLE_MAX_BYTES = 64 * 2**20

CONTENT_SECURITY_POLICY = {
    "EXCLUDE_URL_PREFIXES": ("/admin/", "/api/v1/docs"),
    "DIRECTIVES": {
        "default-src": [SELF],
        "script-src": [SELF],
        "style-src": [SELF],
        # Plotly sets style attributes on its own nodes; sheets and scripts stay strict.
        "style-src-attr": ["'unsafe-inline'"],
        "img-src": [SELF, "data:", "blob:"],
        "connect-src": [SELF],
        "object-src": [NONE],
        "base-uri": [SELF],
        # A form opens a web port of a job: its answer leads to an origin of that port's own.
        "form-action": [SELF, *([SESSION_ORIGINS.pattern] if SESSION_ORIGINS else [])],
        "frame-ancestors": [NONE],
    },
}

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "controlplane.api.auth.TokenAuthentication",
        "controlplane.api.auth.BrowserAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_THROTTLE_CLASSES": ["controlplane.api.throttle.PerUser"],
    "DEFAULT_FILTER_BACKENDS": ["django_filters.rest_framework.DjangoFilterBackend"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "DEFAULT_VERSION": "v1",
    "ALLOWED_VERSIONS": ["v1"],
    "EXCEPTION_HANDLER": "controlplane.api.problem.handle",
    "UNAUTHENTICATED_USER": None,
    "COERCE_DECIMAL_TO_STRING": False,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Switchyard",
    "VERSION": VERSION,
    "OAS_VERSION": "3.1.0",
    "DESCRIPTION": "Shares CPUs, GPUs and NPUs among teams, and says why.",
    "SERVE_INCLUDE_SCHEMA": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "ENUM_NAME_OVERRIDES": {
        "RoleEnum": "controlplane.accounts.models.Member.Role",
        "ServiceAccountRoleEnum": "controlplane.accounts.service_accounts.CHOICES",
    },
}

LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("zh-hans", "简体中文")]
LOCALE_PATHS = [FRONTEND / "locale"]
FORMAT_MODULE_PATH = "controlplane.formats"
TIME_ZONE = "UTC"
USE_TZ = True
USE_I18N = True

STORAGE_URL = os.environ.get("YARD_STORAGE_URL", "")
STORAGES = {
    **_storages(STORAGE_URL, BLOBS, LOGS),
    "staticfiles": {"BACKEND": "controlplane.pages.static_files.CollectedStaticFiles"},
}
STATIC_URL = "/static/"
STATICFILES_DIRS = [FRONTEND / "static"]
STATIC_ROOT = Path(os.environ.get("YARD_STATIC") or HOME / "static")
# What ./script/docs built, served at /docs.
DOCS = Path(os.environ.get("YARD_DOCS") or BASE_DIR / "build" / "docs")
# Until they are collected, files are served from the source tree, under plain names and without compression.
WHITENOISE_USE_FINDERS = not (STATIC_ROOT / "staticfiles.json").is_file()
WHITENOISE_AUTOREFRESH = DEBUG

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": os.environ.get("YARD_LOG_LEVEL", "INFO")},
    "loggers": {"uvicorn.access": {"level": "WARNING"}, "celery.app.trace": {"level": "WARNING"}},
}
