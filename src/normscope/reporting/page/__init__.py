"""Pages: what a run or a comparison of runs found, in one file that needs no network."""
