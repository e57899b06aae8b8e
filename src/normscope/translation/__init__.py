"""Small translation models of one's own, for runs that need one and have no hub."""
