import xml.etree.ElementTree as ElementTree

import pytest
from driving.load import Load
from peers.comparison import METRICS, Comparison
from peers.plot import svg

SVG = "{http://www.w3.org/2000/svg}"


def bars(root):
    return [rect for rect in root.iter(f"{SVG}rect") if rect.find(f"{SVG}title") is not None]


def test_a_bar_for_each_server_and_metric_as_long_as_its_median(comparison):
    root = ElementTree.fromstring(svg(comparison, "All"))
    found = bars(root)
    assert len(found) == 3 * len(METRICS)
    titles = [bar.find(f"{SVG}title").text for bar in found[:3]]
    assert titles == [
        "Pagoda: 20.0 (20.0-20.0)",
        "One: 20.0 (10.0-40.0)",
        "Other: 10.0 (5.0-40.0)",
    ]
    lengths = [float(bar.get("width")) for bar in found[:3]]
    assert lengths[0] == lengths[1] == pytest.approx(2 * lengths[2], abs=0.2)


def test_nothing_lies_outside_the_picture(comparison):
    root = ElementTree.fromstring(svg(comparison, "All"))
    width, height = float(root.get("width")), float(root.get("height"))
    for item in root:
        x = float(item.get("x2") or item.get("x") or 0) + float(item.get("width") or 0)
        y = float(item.get("y2") or item.get("y") or 0) + float(item.get("height") or 0)
        assert x <= width
        assert y <= height


def test_a_trial_is_marked_and_names_are_escaped(make_run):
    trial = Comparison(repeats=1, fraction=1)
    load = Load(concurrency=1, num_requests=2, prompt_tokens=8, output_tokens=10)
    trial.add("c=1", load, "A<B", 0, make_run(), is_ours=False)
    trial.add("c=1", load, "dead", 0, make_run(num_ok=0, num_failed=1), is_ours=False)
    root = ElementTree.fromstring(svg(trial, "x & y"))
    texts = [item.text for item in root.iter(f"{SVG}text")]
    assert "x & y" in texts
    assert "A<B" in texts
    assert "No measurement: 1 repetition(s), 3 are the least" in texts
    assert "-" in texts
