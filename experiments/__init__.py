"""Published numbers and W&B sweeps, which a wheel carries as `normscope.experiments`."""
