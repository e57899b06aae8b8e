"""HTML pages: the report of a run and the comparison of runs, each one self-contained file."""
