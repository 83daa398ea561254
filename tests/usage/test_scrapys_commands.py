"""Commands in a project whose settings name a job: `fetch`, `shell` and the like leave it alone."""

import pytest
from support.crawling import resumes_well
from support.filters import everything, everything_in
from testbed.localsite import LocalSite

pytestmark = [pytest.mark.each_scrapy, pytest.mark.server]

COMMANDS = {
    "fetch": ["fetch", "{url}"],
    "shell": ["shell", "{url}", "-c", "print(response.status)"],
    "parse": ["parse", "--spider", "follower", "-d", "2", "{url}"],
    "check": ["check", "checked"],
    "bench": ["bench", "-s", "CLOSESPIDER_PAGECOUNT=1"],
}
NAMED = 'SCHEDULER = "scrapy_bloom.Scheduler"\nDUPEFILTER_CLASS = "scrapy_bloom.BloomDupeFilter"\n'
NAMED += "LOGSTATS_INTERVAL = 60.0\n"  # as the shell would set it
SETTINGS = {
    "add-on": ("", COMMANDS),
    "redis": (f'{NAMED}ADDONS = None\nBLOOM_REDIS_URL = "{{server}}"\n', ("shell",)),
}


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


@pytest.mark.parametrize("way", SETTINGS)
def test_scrapys_commands_touch_no_file_and_no_key(project, server, way):
    chosen, commands = SETTINGS[way]
    with (project.folder / "project_settings.py").open("a") as settings:
        settings.write(f"SPIDER_MODULES += ['checked']\n{chosen.format(server=server.url)}")
        if way != "redis":
            settings.write(f"JOBDIR = {str(project.job)!r}\n")
    project.job.mkdir()
    with LocalSite(pages=40, links=8) as site:
        (project.folder / "checked.py").write_text(CHECKED.format(site.url))
        assert project.crawl(site, keep=False, CLOSESPIDER_PAGECOUNT=10).end() == 0
        assert site.missed
        before = everything(project.job), everything_in(server)
        assert any(before)
        for name in commands:
            command = [part.format(url=site.url) for part in COMMANDS[name]]
            run = project.start(*command)
            assert run.end() == 0, run.log
            assert not run.logged("ERROR")
            assert (everything(project.job), everything_in(server)) == before, name
        run = project.finish(site, keep=False)
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
