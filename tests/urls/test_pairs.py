"""Each pair of spellings at each level and with each step, and each step's own examples."""

import pytest
from scrapy import Request
from support.pairs import PAIRS

from scrapy_bloom import CanonicalFingerprinter
from scrapy_bloom.canonical.rules import LEVELS, OPT_IN
from scrapy_bloom.canonical.steps import STEPS


def with_steps(*steps):
    return CanonicalFingerprinter("usual", rules={"*": {"steps": list(steps)}})


AT_LEVEL = {level: CanonicalFingerprinter(level) for level in LEVELS}
WITH_STEP = {step: with_steps(step) for step in OPT_IN}
WITH_ALL = with_steps(*OPT_IN)


def merges(fingerprinter, pair):
    one, other = (fingerprinter.fingerprint(Request(url)) for url in (pair.one, pair.other))
    return one == other


def test_each_level_and_step_that_merges_has_a_pair():
    assert {pair.by for pair in PAIRS} >= {*LEVELS, *OPT_IN} - {"fragment_route"}


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.by}: {pair.why}")
def test_a_pair_is_merged_from_its_level_or_step_on_and_by_nothing_else(pair):
    levels = list(LEVELS)
    by = pair.by.removesuffix(" alone")
    from_level = levels.index(by) if by in levels else len(levels)
    assert {level: merges(AT_LEVEL[level], pair) for level in levels} == {
        level: place >= from_level for place, level in enumerate(levels)
    }
    if by not in levels:
        assert [step for step in OPT_IN if merges(WITH_STEP[step], pair)] == [
            step for step in OPT_IN if step == by
        ]
        assert merges(WITH_ALL, pair) == (by in OPT_IN)


def at_its_level(step):
    """Return a fingerprinter that takes this step, and as few others as can be."""
    if step.tier == "opt-in":
        return CanonicalFingerprinter("scrapy", rules={"*": {"steps": [step.name]}})
    if step.tier == "setting":
        names = {"drop": ["dropped*"], "keep_only": ["id"]}[step.name]
        return CanonicalFingerprinter("scrapy", rules={"*": {step.name: names}})
    return AT_LEVEL[step.tier]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_a_steps_example_comes_out_as_it_says(step):
    fingerprinter = at_its_level(step)
    assert fingerprinter.canonical_url(step.before) == step.after
    assert fingerprinter.canonical_url(step.after) == step.after
    assert [name for name, _ in fingerprinter.walk(step.before)] == [step.name]
    if step.reach != "none":  # what a tame URL need not take is not counted
        assert fingerprinter.resolve(Request(step.before))[1] == (step.name,)
