"""`make mutants`: would the tests notice an error in the mathematics, the statistics or the analyses?"""
