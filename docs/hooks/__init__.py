"""Pages that are generated from the program: config keys, presets, tables, models, the Python reference and citations."""
