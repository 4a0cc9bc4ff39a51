"""Laws of the choice of a site, over random jobs, sites and forecasts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from controlplane.sites.choice import AwayRules, SiteOffer, WaitingJob, candidates, choose, may_leave_for

NAMES = st.sampled_from(["berlin", "paris", "oslo"])
TIMES = st.integers(0, 1_000).map(float)
RULES = st.builds(
    AwayRules,
    names=st.none() | st.frozensets(NAMES),
    place=st.just("") | NAMES | st.just("lab"),
    data_at=st.just("") | NAMES | st.just("lab"),
)
JOBS = st.builds(
    WaitingJob,
    rules=RULES,
    since=TIMES,
    ends_at=st.none() | TIMES,
    is_impossible=st.booleans(),
    refused_by=st.frozensets(NAMES),
)
OFFERS = st.lists(
    st.builds(
        SiteOffer,
        name=NAMES,
        room=st.integers(0, 2),
        places=st.frozensets(st.just("lab")),
        price=st.sampled_from([0.0, 1.0, 2.0]),
        patience_s=TIMES,
        gain_s=TIMES,
    ),
    unique_by=lambda one: one.name,
)
ENDS = st.dictionaries(NAMES, TIMES)


@given(JOBS, OFFERS, ENDS, TIMES)
def test_it_leaves_only_as_rules_data_patience_room_and_gain_allow(job, sites, ends, now) -> None:
    chosen = choose(job, sites, ends, now)
    if chosen is None:
        return
    assert job.rules.names is None or chosen.name in job.rules.names
    assert job.rules.place in ("", chosen.name, *chosen.places)
    assert chosen.name not in job.refused_by
    assert chosen.room > 0
    assert chosen.name in ends
    if not job.is_impossible:
        assert now - job.since >= chosen.patience_s
        assert job.ends_at is None or ends[chosen.name] + chosen.gain_s <= job.ends_at


@given(JOBS, OFFERS, ENDS, TIMES)
def test_it_stays_only_if_no_site_is_good_enough(job, sites, ends, now) -> None:
    if choose(job, sites, ends, now) is not None:
        return
    for site in candidates(job, sites, now):
        late = job.ends_at is not None and ends.get(site.name, 0.0) + site.gain_s > job.ends_at
        assert site.name not in ends or (late and not job.is_impossible)


@given(JOBS, OFFERS, ENDS, TIMES)
def test_the_order_of_the_sites_decides_nothing(job, sites, ends, now) -> None:
    assert choose(job, sites, ends, now) == choose(job, list(reversed(sites)), ends, now)


@given(OFFERS, TIMES)
def test_a_job_that_says_nothing_leaves_for_none(sites, now) -> None:
    job = WaitingJob(AwayRules.of({}), since=0.0, is_impossible=True)
    assert candidates(job, sites, now) == []


def test_of_equally_early_sites_the_one_with_the_data_then_the_cheaper_is_taken() -> None:
    dear = SiteOffer("berlin", 1, price=2.0)
    cheap = SiteOffer("paris", 1, price=1.0)
    ends = {"berlin": 110.0, "paris": 100.0}

    def taken(**rules: object) -> str:
        job = WaitingJob(AwayRules.of({"sites": "any", **rules}), since=0.0)
        found = choose(job, [dear, cheap], ends, 100.0)
        return found.name if found else ""

    assert taken() == "paris"
    assert taken(data_at="berlin") == "berlin"
    assert taken(site="berlin") == "berlin"
    assert taken(sites=["berlin"]) == "berlin"
    far = {"berlin": 500.0, "paris": 100.0}
    job = WaitingJob(AwayRules.of({"sites": "any", "data_at": "berlin"}), since=0.0)
    assert choose(job, [dear, cheap], far, 100.0) == cheap


def test_a_place_of_a_site_counts_as_the_site() -> None:
    job = WaitingJob(AwayRules.of({"sites": "any", "site": "lab"}), since=0.0)
    assert may_leave_for(job, SiteOffer("berlin", 1, frozenset({"lab"})))
    assert not may_leave_for(job, SiteOffer("paris", 1))
