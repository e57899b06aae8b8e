"""Files that anyone may have written, such as those of earlier runs: read with size limits and checked to be plain data.

Every function raises one error for whatever is wrong with a file, an InputError that names it.
"""
