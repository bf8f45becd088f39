"""The integrator: numbers updates once for all views and finds the views each one concerns (REL)."""
