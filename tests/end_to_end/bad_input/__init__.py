"""Generated bad input: every case is drawn from a seed, so that one that is answered badly can be run again."""
