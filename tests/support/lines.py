"""What a call costs, counted so that it is as much on any machine."""

import sys


def lines_of(modules, function, *arguments):
    """Return how many lines of some modules a call executes."""
    files, count = {module.__file__ for module in modules}, 0

    def trace(frame, event, _):
        nonlocal count
        count += event == "line" and frame.f_code.co_filename in files
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function(*arguments)
    finally:
        sys.settrace(before)
    return count
