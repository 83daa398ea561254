"""What holds for all tests."""

import atexit
import os
import sys
import sysconfig
from importlib.machinery import PathFinder
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, settings

# `python -m pytest` puts the working directory first: the sources there would be tested, and not
# what is installed. Where nothing is installed, the sources are all that there is. What a .pth file
# names stands behind the standard library, and stays.
_stdlib = sys.path.index(sysconfig.get_path("stdlib"))
_sources = str(Path(__file__).parents[1])
_others = [path for path in sys.path[:_stdlib] if path != _sources] + sys.path[_stdlib:]
if PathFinder.find_spec("scrapy_bloom", _others):
    sys.path[:] = _others

# Scrapy notes each crawl below the user's home. A test must not, and may run without a home.
_state = TemporaryDirectory(prefix="scrapy-bloom-tests-")
atexit.register(_state.cleanup)
os.environ["XDG_STATE_HOME"] = _state.name

# A machine that does other things, too, is slow at times, and no test is about that.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
