"""BibTeX entries of the papers that define the measures."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Paper:
    """A publication that users should cite when they report a measure."""

    key: str
    """Name of the paper's folder in `experiments/`."""
    bibtex: str


KOBAYASHI_2020 = Paper(
    "kobayashi2020",
    """@inproceedings{kobayashi-etal-2020-attention,
  title = {Attention is Not Only a Weight: Analyzing Transformers with Vector Norms},
  author = {Kobayashi, Goro and Kuribayashi, Tatsuki and Yokoi, Sho and Inui, Kentaro},
  booktitle = {Proceedings of EMNLP 2020}, pages = {7057--7075}, year = {2020}
}""",
)

KOBAYASHI_2021 = Paper(
    "kobayashi2021",
    """@inproceedings{kobayashi-etal-2021-incorporating,
  title = {Incorporating Residual and Normalization Layers into Analysis of Masked Language Models},
  author = {Kobayashi, Goro and Kuribayashi, Tatsuki and Yokoi, Sho and Inui, Kentaro},
  booktitle = {Proceedings of EMNLP 2021}, pages = {4547--4568}, year = {2021}
}""",
)

MARUTA_2024 = Paper(
    "maruta2024",
    """@inproceedings{maruta-matsuzaki-2024,
  author = {Maruta and Matsuzaki},
  note = {Outlier dimensions of the hidden vectors and the concentration of attention}, year = {2024}
}""",
)
