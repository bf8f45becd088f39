"""What may be asked of each command; imports none of them, so that ``--help`` stays light."""
