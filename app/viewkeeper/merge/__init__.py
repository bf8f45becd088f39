"""Merge: action lists of many views → warehouse transactions."""
