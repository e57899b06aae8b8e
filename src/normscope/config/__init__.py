"""The config: its types, and the rules that types cannot express."""
