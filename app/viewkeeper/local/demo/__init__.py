"""The parts of ``viewkeeper demo``: sample databases, a writer, processes, a reader of the view topics, a screen."""
