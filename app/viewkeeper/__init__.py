"""Viewkeeper keeps joined tables in a Delta lakehouse exactly in step with several databases.

A change travels one way, and the folders here are its stations:
capture → queue → integrator → managers (which ask the sources) → merge → warehouse.
Under them lies the pure core: ``algebra``, ``algorithms`` and ``messages``.
"""
