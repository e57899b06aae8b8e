"""The analyses, which `registry.analyses()` lists. CONTRIBUTING.md says what one consists of."""
