"""The mixing ratio of every block, by five methods (Kobayashi et al. 2021)."""
