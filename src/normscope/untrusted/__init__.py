"""Files that anybody may have written, such as those of earlier runs: read within bounds, and checked to be plain data.

Every function raises one error for whatever is wrong with a file, an InputError that names it.
"""
