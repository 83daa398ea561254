"""Commands in a project whose settings name a job: `fetch`, `shell` and the like leave it alone."""

import pytest
from support.crawling import resumes_well
from support.filters import everything, everything_in
from testbed.localsite import LocalSite

pytestmark = [pytest.mark.each_scrapy, pytest.mark.server]

COMMANDS = (
    *("shell {url} -c print(response.status)", "fetch {url}", "check checked"),
    *("parse --spider follower -d 2 {url}", "bench -s CLOSESPIDER_PAGECOUNT=1"),
)
IN_REDIS = """
SCHEDULER = "scrapy_bloom.Scheduler"
DUPEFILTER_CLASS = "scrapy_bloom.BloomDupeFilter"
ADDONS = None
BLOOM_REDIS_URL = "{}"
LOGSTATS_INTERVAL = 60.0  # as the shell would set it
"""


CHECKED = '''
from support.crawling import Follower


class Checked(Follower):
    name = "checked"

    def parse(self, response):
        """
        @url {}
        @returns requests 8 8
        """
        yield from super().parse(response)
'''


@pytest.mark.parametrize("shared", [False, True])
def test_scrapys_commands_touch_no_file_and_no_key(project, server, shared):
    kept = IN_REDIS.format(server.url) if shared else f"JOBDIR = {str(project.job)!r}\n"
    with (project.folder / "project_settings.py").open("a") as settings:
        settings.write(f"SPIDER_MODULES += ['checked']\n{kept}")
    project.job.mkdir()
    with LocalSite(pages=40, links=8) as site:
        (project.folder / "checked.py").write_text(CHECKED.format(site.url))
        assert project.crawl(site, keep=False, CLOSESPIDER_PAGECOUNT=10).end() == 0
        assert site.missed
        before = everything(project.job), everything_in(server)
        assert any(before)
        for command in COMMANDS[:1] if shared else COMMANDS:
            run = project.start(*command.format(url=site.url).split())
            assert run.end() == 0, run.log
            # The port of `bench` is fixed: another run of the tests may have just left it.
            assert command.startswith("bench") or not run.logged("ERROR")
            assert (everything(project.job), everything_in(server)) == before, command
        project.finish(site, keep=False)
        assert site.missed == set()


QUIET = """
from scrapy.commands.crawl import Command as Crawl


class Command(Crawl):
    default_settings = {"LOGSTATS_INTERVAL": 0}
"""


def test_a_command_of_the_projects_own_that_crawls_keeps_its_job(project):
    commands = project.folder / "commands"
    commands.mkdir()
    (commands / "quiet.py").write_text(QUIET)
    with (project.folder / "project_settings.py").open("a") as settings:
        settings.write(f"COMMANDS_MODULE = 'commands'\nJOBDIR = {str(project.job)!r}\n")
    with LocalSite(pages=40, links=8) as site:
        command = "quiet", "follower", "-a", f"url={site.url}"
        run = project.start(*command, "-s", "CLOSESPIDER_PAGECOUNT=10")
        assert run.end() == 0, run.log
        assert (project.job / "bloom.sqlite").exists()
        project.start(*command).complete()
        assert resumes_well(site)
