"""The presets, which a wheel carries as `normscope.conf`."""
