"""The levels of consistency as checkers: strobe-1996 section 4.2, multiple-view-consistency-1997 sections 2 and 6.3.

They take plain sequences of states, so they judge simulations and real warehouses alike.
"""
