"""How much work Python code does, whatever the machine does besides."""

import sys


def steps(do, *arguments):
    """Call a function; return how many of Python's instructions that took."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        do(*arguments)
    finally:
        sys.settrace(before)
    return count
