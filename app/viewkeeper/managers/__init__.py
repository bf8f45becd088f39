"""View managers: each drives an algorithm for its view, asks the sources and emits action lists."""
