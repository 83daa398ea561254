"""A job and a key with requests that commit 734aeafd has left are refused and stay as they are."""

import gzip
import json
from pathlib import Path

import pytest
from support.crawling import KEPT, crawl_refused
from support.filters import everything_in

pytestmark = pytest.mark.server

LEFT = Path(__file__).parent / "formats"


async def test_a_job_of_the_last_format_is_refused(job, bloom, caplog):
    job.mkdir()
    path, left = job / "bloom.sqlite", gzip.decompress((LEFT / "bloom.sqlite.gz").read_bytes())
    path.write_bytes(left)
    for settings in (KEPT, {}):
        said = await crawl_refused({**settings, "JOBDIR": str(job)}, caplog)
        assert "found format 4, expected format 5. It was left as it is: use the version" in said
        assert "scrapy-bloom that wrote it, commit 734aeafd." in said
    code, _, [error] = bloom(f"info {job}")
    assert (code, "commit 734aeafd" in error) == (2, True)
    assert path.read_bytes() == left
    assert [each.name for each in job.glob("*.sqlite-*")] == []


async def test_a_key_of_the_last_format_is_refused(server, bloom, caplog):
    client, key = server.client(), "shop"
    for name, value in json.loads((LEFT / "key.json").read_text()).items():
        if isinstance(value, dict):
            client.hset(
                name, mapping={field: text.encode("latin-1") for field, text in value.items()}
            )
        else:
            client.zadd(name, {member.encode("latin-1"): score for member, score in value})
    before = everything_in(server, key)
    shared = {**KEPT, "BLOOM_REDIS_URL": server.url, "BLOOM_REDIS_KEY": key}
    said = await crawl_refused(shared, caplog)
    assert "found 'scrapy-bloom 6', expected 'scrapy-bloom 7'. Nothing was changed." in said
    assert "scrapy-bloom that wrote it, commit 734aeafd, or another key" in said
    code, _, [error] = bloom(f"info {server.url}#{key}")
    assert (code, "commit 734aeafd" in error) == (2, True)
    assert everything_in(server, key) == before
