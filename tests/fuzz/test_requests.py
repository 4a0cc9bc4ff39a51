"""Every address × every place of a request × every hostile value: what cannot be is refused, and nothing breaks.

The addresses are those of the resolver, the parameters and bodies those of ``openapi.yaml`` and of the pages: what is
added later is tried without a line here. Each request is undone, so that the next one finds the same cluster.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import pytest
import yaml
from django.contrib import admin
from django.db import transaction
from django.http import HttpResponse, QueryDict
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.fleet import service as fleet
from controlplane.fleet.models import Node
from controlplane.jobs.models import Attempt
from controlplane.jobs.spec import JOB_KEYS, STAGE_KEYS
from tests.controlplane.conftest import town  # noqa: F401  the fixture
from tests.controlplane.people import Town
from tests.fuzz.hostile import BODIES, CURSORS, HEADERS, JSON, WORDS

SCHEMA = Path(__file__).parents[2] / "openapi.yaml"
# Parameters that pages and the administration read; those of the API stand in its schema.
OF_PAGES = (
    "state", "project", "pool", "user", "q", "sort", "cursor", "job", "did", "with", "range", "stage", "attempt",
    "rank", "stream", "from", "next",
)  # fmt: skip
OF_ADMIN = (
    "q",
    "p",
    "o",
    "all",
    "e",
    "id__exact",
    "_to_field",
    "_popup",
    "_changelist_filters",
    "created_at__gte",
    "name",
    "project__id__exact",
)
# A body that is accepted, field by field the ground for one that is not.
GOOD: dict[str, dict[str, Any]] = {
    "/api/v1/jobs": {"name": "a", "run": "true"},
    "/api/v1/jobs/batch": {"jobs": [{"run": "true"}]},
    "/api/v1/maintenance-windows": {"starts_at": "2100-01-01T00:00:00Z", "ends_at": "2100-01-02T00:00:00Z",
    "reason": "x", "node": "n1"},
    "/api/v1/simulations": {"trace": {"generate": {"jobs": 3}}, "world": {"nodes": "1x1"}},
    "/api/v1/consolidation": {},
    "/api/v1/templates/<template>/fill": {"set": {}},
    "/api/v1/services": {"file": {"name": "chat", "template": {"run": "true"}}},
    "/api/v1/functions": {"name": "add", "code": "def handle(event): ..."},
    "/api/v1/functions/<number>/calls": {"event": [1]},
    "/api/v1/providers": {"name": "hpc", "kind": "slurm", "pool": "default", "settings": {"python": "/usr/bin/python3"},
    "shapes": [{"name": "small", "cpus": 1, "memory_gib": 1}]},
    "/api/v1/sites": {"name": "berlin", "url": "https://yard.example.org"},
    "/api/v1/schedules": {"name": "nightly", "job": {"run": "true"}, "cron": "0 3 * * *"},
}  # fmt: skip
T = TypeVar("T")


@cache
def addresses() -> list[str]:
    """All addresses of the server, with their parameters as ``<name>``."""
    return sorted(dict.fromkeys(_walked(get_resolver().url_patterns, "/")))


def _walked(patterns: Iterable[Any], prefix: str) -> Iterator[str]:
    for each in patterns:
        text = re.sub(r"\(\?P(<\w+>)[^)]*\)", r"\1", str(each.pattern))
        text = re.sub(r"<(?:\w+:)?(\w+)>", r"<\1>", text).replace("^", "").replace("$", "").replace("\\Z", "")
        if isinstance(each, URLResolver):
            yield from _walked(each.url_patterns, prefix + text)
        else:
            assert isinstance(each, URLPattern)
            yield prefix + text


def test_the_resolver_knows_pages_api_agents_and_administration() -> None:
    found = addresses()
    for one in ("/", "/jobs/<number>", "/api/v1/jobs/<name>/cancel", "/agent/v1/logs", "/admin/pools/quota/add/"):
        assert one in found
    assert len(found) > 100


def some(values: Sequence[T], place: str, count: int = 5) -> Sequence[T]:
    """``count`` of the values, other ones at each place but always the same there; all of them in a long run."""
    if os.environ.get("YARD_LONG"):
        return values
    begin = zlib.crc32(place.encode())
    return [values[(begin + index * 7) % len(values)] for index in range(count)]


class Crawl:
    """Sends requests as somebody, undoes each, and remembers those that broke something."""

    def __init__(self, town: Town) -> None:
        self.town, self.sent = town, 0
        self.broke: list[str] = []
        agent = town.machine()
        self.job = town.running(agent, name="target")
        self.known = {
            "call": "1",
            "name": str(self.job.number), "number": str(self.job.number), "uuid": "GPU-n1-0", "sha256": "a" * 64,
            "project": "default", "secret": "x", "webhook": "x", "template": "torchrun",
            "token": "00000000-0000-4000-8000-000000000000", "trace": "00000000-0000-4000-8000-000000000000",
            "event": "00000000-0000-4000-8000-000000000000",
            "rest": "nothing", "object_id": "1", "id": "1", "provider_id": "x", "content_type_id": "1", "url": "x",
            "app_label": "pools", "uidb36": "1", "key": "x", "user": "mate", "index": "0",
        }  # fmt: skip
        self.clients = {name: getattr(town, name).client for name in ("anonymous", "staff")}
        for client in self.clients.values():
            client.raise_request_exception = False
        town.user.is_superuser = True
        town.user.save()
        self.browser = Client(raise_request_exception=False)
        self.browser.force_login(town.user)

    def client(self, address: str) -> Client:
        """Pages and the administration know a browser, the API a token."""
        return self.clients["staff"] if address.startswith("/api/") else self.browser

    def fill(self, address: str, **values: str) -> str:
        """The address with its parameters filled in: with ``values``, or with what there is."""
        known = dict(self.known)
        if address.startswith("/api/v1/attempts"):
            known["name"] = str(Attempt.objects.values_list("id", flat=True)[0])
        for word, name in (
            ("nodes", "n1"),
            ("pools", "default"),
            ("projects", "default"),
            ("devices", "GPU-n1-0"),
            ("providers", "hpc"),
            ("sites", "berlin"),
        ):
            if f"/{word}/" in address:
                known["name"] = name
        return re.sub(r"<(\w+)>", lambda found: {**known, **values}[found[1]], address)

    def send(self, client: Client, method: str, path: str, **how: Any) -> HttpResponse:
        self.sent += 1
        with transaction.atomic():
            answer = client.generic(method, path, **how)
            # What is streamed to a server's event loop has no end, and has not begun.
            if getattr(answer, "streaming", False) and not getattr(answer, "is_async", False):
                b"".join(answer.streaming_content)  # type: ignore[attr-defined]
            transaction.set_rollback(True)
        # 503 is what /readyz says of a scheduler that has not looked round for a while, as on a machine that is busy.
        if answer.status_code >= 500 and not (answer.status_code == 503 and path.startswith("/readyz")):
            said = str(how.get("data", ""))[:120]
            self.broke.append(f"{answer.status_code} {method} {path[:160]} {how.get('headers', '')!s:.120} {said}")
        return answer

    def ends(self) -> None:
        assert self.sent
        assert self.broke == []


@pytest.fixture
def crawl(town: Town) -> Crawl:
    return Crawl(town)


@cache
def schema() -> dict[str, Any]:
    return dict(yaml.load(SCHEMA.read_text(), yaml.CSafeLoader))


def parameters_of(address: str, method: str = "get") -> list[str]:
    """The query parameters that this address reads."""
    if address.startswith("/admin"):
        return list(OF_ADMIN)
    if not address.startswith("/api/"):
        return list(OF_PAGES)
    operation = schema()["paths"].get(re.sub(r"<(\w+)>", r"{\1}", address), {}).get(method, {})
    return [each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"]


def _group(address: str) -> str:
    """The first steps of an address: one test for all that begin alike, so that a failure says where."""
    return "/".join(address.split("/")[: 4 if address.startswith("/api") else 3])


@contextmanager
def noting() -> Iterator[set[str]]:
    """The parameters of a query that are asked for meanwhile; ``*`` stands for all of them."""
    names: set[str] = set()

    def noted(method: str) -> Any:
        its = getattr(QueryDict, method)

        def note(self: QueryDict, *given: Any, **named: Any) -> Any:
            names.add(str(given[0]) if given else "*")
            return its(self, *given, **named)

        return note

    with pytest.MonkeyPatch.context() as patch:
        for method in ("__getitem__", "__contains__", "getlist", "__iter__", "lists", "keys"):
            patch.setattr(QueryDict, method, noted(method))
        yield names


@pytest.mark.parametrize("group", sorted({_group(one) for one in addresses()}))
def test_hostile_paths_and_queries_are_refused(crawl: Crawl, group: str) -> None:
    for address in (one for one in addresses() if _group(one) == group):
        # The pages of the administration are many, slow, and all of one making.
        each = 2 if group.startswith("/admin") else 5
        for parameter in re.findall(r"<(\w+)>", address):
            for word in some(WORDS, address + parameter, 2 * each):
                crawl.send(crawl.client(address), "GET", crawl.fill(address, **{parameter: word}))
        path = crawl.fill(address)
        with noting() as names:
            crawl.send(crawl.client(address), "GET", path)
        for parameter in parameters_of(address):
            # The schema says what the API reads; a page is tried the harder with what it asked for.
            is_read = address.startswith("/api/") or not names.isdisjoint((parameter, "*"))
            for word in (
                *some(WORDS, address + parameter, each if is_read else 1),
                *(some(CURSORS, address) if parameter == "cursor" else ()),
            ):
                crawl.send(crawl.client(address), "GET", f"{path}?{parameter}={word}")
        crawl.send(crawl.client(address), "GET", path + "?" + "a=1&" * 1500)
        crawl.send(crawl.client(address), "GET", path + "?%00=1")
    crawl.ends()


def test_who_is_not_signed_in_is_refused_alike(crawl: Crawl) -> None:
    """The API's roles are those of test_schema.py."""
    client = crawl.clients["anonymous"]
    for address in addresses():
        for word in some(("%00", "%FF", "9" * 25, "1e400"), address, 1):
            path = crawl.fill(address, **dict.fromkeys(re.findall(r"<(\w+)>", address), word))
            crawl.send(client, "GET", path)
            crawl.send(client, "POST", path, data=b"{}", content_type="application/json")
            for parameter in some(parameters_of(address), address, 1) if parameters_of(address) else ():
                crawl.send(client, "GET", f"{crawl.fill(address)}?{parameter}={word}")
    crawl.ends()


@pytest.mark.parametrize("header", list(HEADERS))
def test_hostile_headers_are_refused(crawl: Crawl, header: str) -> None:
    key = header.upper().replace("-", "_")
    key = key if key in {"CONTENT_LENGTH", "CONTENT_TYPE"} else f"HTTP_{key}"
    for address in (
        "/",
        "/jobs",
        "/sign-in",
        "/admin/",
        "/api/v1/jobs",
        "/api/v1/whoami",
        "/api/v1/bundles",
        "/agent/v1/enrol",
        "/agent/v1/logs",
        "/static/x",
        "/language",
    ):
        for value in some(HEADERS[header], address + header, 3):
            for method in ("GET", "POST"):
                crawl.send(
                    crawl.client(address),
                    method,
                    address,
                    data=b"{}",
                    **{"content_type": "application/json", key: value},
                )
                crawl.send(
                    crawl.clients["anonymous"],
                    method,
                    address,
                    data=b"a=b",
                    **{"content_type": "application/x-www-form-urlencoded", key: value},
                )
    crawl.ends()


def _posts() -> list[str]:
    return [one for one in addresses() if not one.startswith("/admin")]


@pytest.mark.parametrize(
    "kind",
    [
        "application/json",
        "application/yaml",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/octet-stream",
        "application/msgpack",
        "",
    ],
)
def test_hostile_bodies_are_refused(crawl: Crawl, kind: str) -> None:
    _node, credential = _node_of(crawl.town)
    agent = Client(raise_request_exception=False, headers={"authorization": f"Bearer {credential}"})
    for address in _posts():
        client = agent if address.startswith("/agent/") else crawl.client(address)
        for body in some(BODIES, address + kind, 2):
            crawl.send(client, "POST", crawl.fill(address), data=body, content_type=kind)
    crawl.ends()


def _node_of(town: Town) -> tuple[Node, str]:
    """A node that has joined, and its credential."""
    return fleet.enrol(fleet.make_join_token(town.pool), "joined")


def _fields(address: str) -> list[str]:
    """The keys of the body that this address takes."""
    if address == "/api/v1/jobs":
        return [*JOB_KEYS, "shm"]
    operation = schema()["paths"].get(re.sub(r"<(\w+)>", r"{\1}", address), {}).get("post", {})
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    named = content.get("$ref", "").rpartition("/")[2]
    return list(schema()["components"]["schemas"][named]["properties"]) if named else []


WITH_FIELDS = [one for one in addresses() if one.startswith("/api/") and _fields(one)]


@pytest.mark.parametrize("address", WITH_FIELDS)
def test_hostile_fields_are_refused(crawl: Crawl, address: str) -> None:
    good = GOOD.get(address, {})
    for name in _fields(address):
        rest = json.dumps({key: value for key, value in good.items() if key != name})[1:-1]
        for written in some(JSON, address + name, 6):
            body = f"{{{json.dumps(name)}: {written}{', ' if rest else ''}{rest}}}"
            for query in ("", "?dry_run=placement") if address == "/api/v1/jobs" else ("",):
                crawl.send(
                    crawl.client(address),
                    "POST",
                    crawl.fill(address) + query,
                    data=body,
                    content_type="application/json",
                )
    crawl.ends()


# Where a mapping of the job file has keys of its own.
INNER = {
    "devices": ("kind", "vendor", "model", "count", "milli", "memory", "partition", "run", "command", "env", "image",
    "any_of"),
    "retry": ("max", "on", "backoff"), "preemption": ("allowed", "grace", "to"), "checkpoint": ("keep",
    "interval_hint", "framework"),
    "topology": ("within", "mode"), "nodes": ("min", "max"), "env": ("A",), "labels": ("a",),
    "inputs": ("from", "name", "path"), "outputs": ("name", "path"),
}  # fmt: skip


def test_hostile_values_inside_a_job_file_are_refused(crawl: Crawl) -> None:
    client = crawl.client("/api/v1/jobs")
    for outer, names in INNER.items():
        for name in names:
            for written in some(JSON, outer + name, 5):
                inner = f"{{{json.dumps(name)}: {written}}}"
                held = f"[{inner}]" if outer in {"inputs", "outputs"} else inner
                body = f'{{"run": "true", {json.dumps(outer)}: {held}}}'
                crawl.send(client, "POST", "/api/v1/jobs?dry_run=validate", data=body, content_type="application/json")
    for name in STAGE_KEYS:
        for written in some(JSON, name, 5):
            body = f'{{"stages": [{{"name": "a", "run": "true", {json.dumps(name)}: {written}}}]}}'
            crawl.send(client, "POST", "/api/v1/jobs", data=body, content_type="application/json")
    crawl.ends()


@pytest.mark.parametrize("model", [f"{m._meta.app_label}/{m._meta.model_name}" for m in admin.site._registry])
def test_hostile_forms_of_the_administration_are_refused(crawl: Crawl, model: str) -> None:
    app, name = model.split("/")
    kind = next(m for m in admin.site._registry if (m._meta.app_label, m._meta.model_name) == (app, name))
    row = kind._default_manager.first()
    pages = [f"/admin/{model}/add/", *([f"/admin/{model}/{quote(str(row.pk), safe='')}/change/"] if row else [])]
    for page in pages:
        answer = crawl.send(crawl.browser, "GET", page)
        if answer.status_code != 200:
            continue
        form = answer.context["adminform"].form
        good = {key: form.initial.get(key, "x") for key in form.fields}
        for field in form.fields:
            for word in some(WORDS, page + field, 2):
                rest = "&".join(f"{quote(key)}={quote(str(value))}" for key, value in good.items() if key != field)
                crawl.send(
                    crawl.browser, "POST", page, data=f"{rest}&{quote(field)}={word}",
                    content_type="application/x-www-form-urlencoded"
                )  # fmt: skip
    crawl.send(
        crawl.browser,
        "POST",
        f"/admin/{model}/",
        data="action=delete_selected&_selected_action=%00",
        content_type="application/x-www-form-urlencoded",
    )
    crawl.send(
        crawl.browser,
        "POST",
        f"/admin/{model}/",
        data="action=delete_selected&_selected_action=" + "9" * 30,
        content_type="application/x-www-form-urlencoded",
    )
    crawl.ends()


def test_no_address_breaks_on_any_method(crawl: Crawl) -> None:
    for address in addresses():
        for method in some(("OPTIONS", "HEAD", "PUT", "PATCH", "DELETE", "TRACE", "PROPFIND", "get"), address, 3):
            crawl.send(crawl.client(address), method, crawl.fill(address))
    crawl.ends()


@given(
    values=st.lists(
        st.tuples(st.sampled_from(("path", "query", "header", "body")), st.text(max_size=40)), min_size=1, max_size=4
    ),
    which=st.randoms(use_true_random=False),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_any_request_is_answered(crawl: Crawl, values: list[tuple[str, str]], which: Any) -> None:
    address = which.choice(addresses())
    path, query, headers, body = crawl.fill(address), [], {}, "{}"
    for place, text in values:
        quoted = quote(text.encode("utf-8", "surrogatepass"), safe="")
        if place == "path" and (names := re.findall(r"<(\w+)>", address)):
            path = crawl.fill(address, **{which.choice(names): quoted})
        elif place == "query":
            query.append(f"{which.choice([*parameters_of(address), 'a'])}={quoted}")
        elif place == "header":
            headers[which.choice(list(HEADERS))] = text.encode("utf-8", "replace").decode("latin-1")
        else:
            names = [*_fields(address), "a"] if address.startswith("/api/") else ["a"]
            body = json.dumps({**GOOD.get(address, {}), which.choice(names): text})
    headers.pop("Content-Type", None)
    crawl.send(
        crawl.client(address), which.choice(("GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS")),
        path + "?" + "&".join(query),
        data=body, content_type="application/json", headers=headers,
    )  # fmt: skip
    assert crawl.broke == []
