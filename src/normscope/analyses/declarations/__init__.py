"""What each analysis declares: its options and what it returns.

Help, shell completion, comparisons and saved runs read it, and need no torch, which takes seconds to import.
"""
