"""Generates bad input of every kind the program reads, runs it, and judges the answer.

python -m tests.end_to_end.bad_input --seed 1 --count 100
python -m tests.end_to_end.bad_input --run-folders compare

Each case runs in a forked process of its own with limits on time and memory, in a folder of its own that is compared before
and after. Case N of a seed is the same on every machine.
"""
