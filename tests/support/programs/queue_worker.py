"""One worker of a shared queue, as a program: queue_worker.py URL KEY MAX_DELIVERIES.

It does what it is told on its standard input, a line of JSON each: a method and its arguments. It
prints what came of it as a line of JSON:

- ``["offer", names]``: a list with true for each that was seen;
- ``["take", n]``: the names that were taken;
- ``["acknowledge", names]``, ``["give_back", names]``: null;
- ``["holds", names]``: those that are still its own;
- ``["sure"]``, ``["requeue_dead"]``, ``["look"]``, ``["numbers"]``: what the queue says.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from support import pace
from support.queues import Worker, entry, names, patiently


def main():
    pace.follow()
    url, key, most = sys.argv[1:]
    tickets = {}
    with Worker(url, key, max_deliveries=int(most)) as worker:
        queue = worker.queue

        def take(count):
            taken = patiently(queue.take, count)
            tickets.update(zip(names(taken), (one.ticket for one in taken), strict=True))
            return names(taken)

        does = {
            "offer": lambda some: patiently(queue.offer, [entry(name) for name in some]).seen,
            "take": take,
            "acknowledge": lambda some: patiently(queue.acknowledge, [tickets[n] for n in some]),
            "give_back": lambda some: patiently(queue.give_back, [tickets[n] for n in some]),
            "holds": lambda some: [name for name in some if queue.holds(tickets[name])],
            "sure": lambda: queue.sure,
            "requeue_dead": lambda: patiently(queue.requeue_dead),
            "look": lambda: patiently(queue.look)[:2],
            "numbers": lambda: dict(queue.numbers()),
        }
        print("open", flush=True)
        for line in sys.stdin:
            word, *arguments = json.loads(line)
            print(json.dumps(does[word](*arguments)), flush=True)


if __name__ == "__main__":
    main()
