"""A plain histogram is scraped like prometheus_client's own."""

import random

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from pagoda_runtime.telemetry.plain_histogram import PlainHistogram

BUCKETS = (0.001, 0.01, 0.1, 1, 2.5)


def exposed(registry: CollectorRegistry) -> list[bytes]:
    lines = generate_latest(registry).splitlines()
    return sorted(line for line in lines if b"_created" not in line)


def test_exposition_is_that_of_the_librarys_histogram() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    plain = PlainHistogram("seconds", "How long", "part", buckets=BUCKETS, registry=ours)
    reference = Histogram("seconds", "How long", ["part"], buckets=BUCKETS, registry=theirs)
    values = [*BUCKETS, 0.0, 7.0, *(rng.lognormvariate(-3, 3) for _ in range(200))]
    for value in values:
        part = rng.choice("ab")
        plain.labels(part).observe(value)
        reference.labels(part).observe(value)

    assert exposed(ours) == exposed(theirs)


def test_one_series_without_a_label() -> None:
    registry = CollectorRegistry()
    plain = PlainHistogram("sizes", "How large", buckets=(1, 2), registry=registry)
    plain.observe(2)

    assert registry.get_sample_value("sizes_count") == 1
    assert registry.get_sample_value("sizes_bucket", {"le": "1.0"}) == 0
    assert registry.get_sample_value("sizes_bucket", {"le": "2.0"}) == 1


def test_a_label_cannot_be_left_out() -> None:
    plain = PlainHistogram("s", "d", "part", buckets=(1,), registry=CollectorRegistry())
    with pytest.raises(ValueError, match="label"):
        plain.observe(1.0)


def test_a_name_is_taken_once() -> None:
    registry = CollectorRegistry()
    PlainHistogram("s", "d", buckets=(1,), registry=registry)
    with pytest.raises(ValueError, match="Duplicated"):
        PlainHistogram("s", "d", buckets=(1,), registry=registry)
