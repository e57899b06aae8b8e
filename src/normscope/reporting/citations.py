"""The papers that a run's numbers rest on."""

from collections.abc import Iterable

_PAPERS = {
    "kobayashi2020": """@inproceedings{kobayashi-etal-2020-attention,
  title = {Attention is Not Only a Weight: Analyzing Transformers with Vector Norms},
  author = {Kobayashi, Goro and Kuribayashi, Tatsuki and Yokoi, Sho and Inui, Kentaro},
  booktitle = {Proceedings of EMNLP 2020}, pages = {7057--7075}, year = {2020}
}""",
    "kobayashi2021": """@inproceedings{kobayashi-etal-2021-incorporating,
  title = {Incorporating Residual and Normalization Layers into Analysis of Masked Language Models},
  author = {Kobayashi, Goro and Kuribayashi, Tatsuki and Yokoi, Sho and Inui, Kentaro},
  booktitle = {Proceedings of EMNLP 2021}, pages = {4547--4568}, year = {2021}
}""",
    "maruta2024": """@inproceedings{maruta-matsuzaki-2024,
  author = {Maruta and Matsuzaki},
  note = {Outlier dimensions of the hidden vectors and the concentration of attention}, year = {2024}
}""",
}

_OF = {
    "mixing": ("kobayashi2021",),
    "norms": ("kobayashi2020", "kobayashi2021"),
    "frequency": ("kobayashi2020", "kobayashi2021"),
    "outliers": ("maruta2024",),
    "score": ("maruta2024",),
    "alignment": ("kobayashi2020",),
}

_OURS = """@software{normscope, title = {normscope}, note = {What the attention blocks of a Transformer really do}}"""


def citations(analyses: Iterable[str]) -> str:
    """BibTeX of the papers behind some analyses, and of normscope."""
    keys = dict.fromkeys(key for name in analyses for key in _OF.get(name, ()))
    return "\n\n".join([*(_PAPERS[key] for key in keys), _OURS])
