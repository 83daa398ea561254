"""What holds for all tests."""

import atexit
import os
from tempfile import TemporaryDirectory

# Scrapy notes each crawl below the user's home. A test must not, and may run without a home.
_state = TemporaryDirectory(prefix="scrapy-bloom-tests-")
atexit.register(_state.cleanup)
os.environ["XDG_STATE_HOME"] = _state.name
