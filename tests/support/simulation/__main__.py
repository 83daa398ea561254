"""Runs histories: ``python -m support.simulation SERVER SET FIRST [END]``.

SERVER is the URL of a Redis server that nobody else uses; a job directory needs none. The first
history that goes wrong is the last one, and is printed as a line; of a single one all that has
happened is.
"""

import gc
import logging
import sys
import warnings
from contextlib import ExitStack
from unittest import mock

from twisted.logger import STDLibLogObserver, globalLogBeginner

from support.simulation import clock
from support.simulation.sets import SETS


def main(server, name, first, end=None):
    """Run histories until one goes wrong; return whether one has."""
    clock.install()
    logging.lastResort = None  # a history has a handler
    globalLogBeginner.beginLoggingTo([STDLibLogObserver()], redirectStandardIO=False)
    gc.freeze()
    seeds = range(int(first), int(end or int(first) + 1))
    return any(went_wrong(server, name, seed, show=end is None) for seed in seeds)


def went_wrong(server, name, seed, *, show):
    options = dict(SETS[name])
    with ExitStack() as stack:
        for each in options.pop("patches", ()):
            stack.enter_context(mock.patch.object(*each))
        world = options.pop("world")(server, seed, **options)
        lost = world.run()
    if show:
        for each in world.history:
            print(*each)
    wrong = bool(lost or world.wrong)
    if wrong:
        print(f"{name!r}, seed {seed}: lost {lost}, {world.wrong}", flush=True)
    del world
    gc.collect()  # now, and not while another one runs: what was killed has code for its end
    return wrong


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # what a kill leaves open
    sys.unraisablehook = lambda _: None  # and code for its end that cannot run any more
    sys.exit(main(*sys.argv[1:]))
