"""Whole crawls in virtual time: real engines, the real package, a real Redis or job directory.

All workers of a crawl run in one thread, each with an event loop and a clock of its own; what the
package does in threads are events. Time passes when nothing is left to do before, so hours take
parts of a second. All that is left to chance comes from a seed: a history can be repeated.

``python -m support.simulation`` runs histories, see there.
"""
