"""Names are sorted as people expect, in SQL, in Python and by the command alike, and lists of nodes are walked so."""

from __future__ import annotations

import json
import string

from django.db import connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.fleet.models import Node
from controlplane.natural import natural_key
from switchyard.cli.devices import place
from switchyard.cli.units import natural
from tests.record.yard import Yard, cpu, gpu

NAMES = st.lists(st.text(string.ascii_letters + string.digits + "._-", min_size=1, max_size=63), max_size=20)
ORDERED = ["g1", "g2", "g10", "g10-a1", "g10-a2", "g10-a10", "g100"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(NAMES)
def test_one_order_everywhere(db: None, names: list[str]) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT natural_key(name) FROM unnest(%s::text[]) AS t(name)", [names])
        keys = [row[0] for row in cursor.fetchall()]
    assert keys == [natural_key(name) for name in names] == [natural(name) for name in names]
    assert len(set(keys)) == len(set(names)), "two names with one key would be one place of a cursor"


def test_numbers_within_names_count_as_numbers() -> None:
    by_letters = sorted(ORDERED)
    assert sorted(by_letters, key=natural_key) == ORDERED != by_letters
    rows = [{"node": name, "kind": "gpu", "index": 0} for name in reversed(ORDERED)]
    assert [row["node"] for row in sorted(rows, key=place)] == ORDERED


def test_nodes_are_listed_and_walked_in_this_order(db: None) -> None:
    from tests.controlplane.people import Person
    from tests.controlplane.test_pages import browser, text

    yard = Yard()
    for name in reversed(ORDERED):
        yard.agent(name, cpu(name), gpu(name))
    reader = Person(yard.user)
    walked: list[str] = []
    at: str | None = "/nodes?limit=2"
    while at:
        answer = reader.read(at)
        walked += [node["name"] for node in answer["results"]]
        at = answer["next"] and answer["next"].removeprefix("/api/v1")
    assert walked == ORDERED
    assert [node["name"] for node in reader.read("/overview")["nodes"]] == ORDERED
    lanes = reader.read("/timeline")["lanes"]
    assert list(dict.fromkeys(lane["node"] for lane in lanes)) == ORDERED
    page = text(browser(reader), "/")
    heat = page.split('id="chart-heat-0" type="application/json">')[1].split("</script>")[0]
    assert json.loads(heat)["rows"] == ORDERED
    # Walking reads an index in its order: how far into the list it is does not matter.
    plan = Node.objects.filter(sort_key__gt=natural_key("g10")).order_by("sort_key")[:2]
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute("SET LOCAL enable_bitmapscan = off")
    assert "Index Scan using fleet_node_sort_key" in plan.explain()
