"""normscope: what the attention blocks of a Transformer really do."""
