"""The job: the stations wired together, and the loop that drives them."""
