"""The short way, which most links take, ends where the steps and w3lib end, byte for byte."""

from itertools import islice
from random import Random

import pytest
from support import mutants

from scrapy_bloom.canonical import fast_path

pytestmark = pytest.mark.scrapy


def test_urls_made_from_pieces_of_real_ones():
    """`python -m support.mutants` does this with a million of them."""
    urls = islice(mutants.mutants(mutants.of_packages(), Random(8)), 6_000)
    assert list(mutants.differences(urls)) == []


def test_real_urls_take_the_short_way():
    urls = mutants.of_packages()
    assert len(urls) > 200
    assert list(mutants.differences(urls)) == []
    tame = [url for url in urls if fast_path.take(url)]
    assert len(tame) > 0.97 * len(urls)
