"""Models by name, in a folder or in memory, ready to be observed."""
