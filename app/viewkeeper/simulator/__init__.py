"""The simulator: the core's algorithms under an adversarial scheduler, with simulated sources, channels and faults.

Seeded and single-threaded; time is virtual and nothing waits. A history is data: it can be printed, saved, replayed
and shrunk.
"""
