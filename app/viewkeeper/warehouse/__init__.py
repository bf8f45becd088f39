"""The last station: Delta tables, the cuts that publish them, and the view topics."""
