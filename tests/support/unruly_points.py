"""A plan of small points that go wrong in every way, for worker processes of the tests."""

import os
import time

from gpu.harness.points import Group, NotAvailableError, Point, Subject


class Plain(Subject):
    def __init__(self, setting):
        self.facts = {"seed": setting.seed}
        self.num_resets = 0

    def reset(self):
        self.num_resets += 1


def broken(setting):
    raise RuntimeError("no weights")


def dying(setting):
    os.abort()


def works(subject):
    return {"num_resets": subject.num_resets}


def raises(subject):
    raise ValueError("out of registers")


def is_missing(subject):
    raise NotAvailableError("the pool is too small")


def is_wrong(subject):
    return {"status": "wrong"}


def dies(subject):
    os.abort()


def hangs(subject):
    time.sleep(600)


def group(name, *points, build=Plain, **fields):
    return Group(name, build, tuple(points), **fields)


def gate(name, run):
    return Point(name, run, is_gate=True)


WORKS = Point("works", works)
GROUPS = [
    group("good", WORKS, Point("again", works)),
    group("raising", Point("raises", raises), Point("missing", is_missing), WORKS),
    group("dying", Point("dies", dies), WORKS),
    group("hanging", Point("hangs", hangs, seconds=0.3), WORKS),
    group("wrong", gate("wrong", is_wrong), WORKS),
    group("dead gate", gate("dies", dies), WORKS),
    group("broken", WORKS, build=broken),
    group("dead", WORKS, build=dying),
    group("slow", Point("hangs", hangs, seconds=600.0), WORKS),
]


PLAN = "support.unruly_points:groups_of"


def groups_of(scope, device):
    return GROUPS
