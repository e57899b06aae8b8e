"""Small translation models, trained from scratch, for runs without access to the Hub."""
