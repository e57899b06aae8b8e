"""BibTeX entries of the papers that define the measures."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Paper:
    """A publication that users should cite when they report a measure."""

    key: str
    """First author and year; a paper of results that can be repeated has a folder in `experiments/`."""
    bibtex: str


KOBAYASHI_2020 = Paper(
    "kobayashi2020",
    """@inproceedings{kobayashi-etal-2020-attention,
  title = {Attention is Not Only a Weight: Analyzing Transformers with Vector Norms},
  author = {Kobayashi, Goro and Kuribayashi, Tatsuki and Yokoi, Sho and Inui, Kentaro},
  booktitle = {Proceedings of the 2020 Conference on Empirical Methods in Natural Language Processing (EMNLP)},
  publisher = {Association for Computational Linguistics},
  year = {2020},
  month = nov,
  pages = {7057--7075},
  doi = {10.18653/v1/2020.emnlp-main.574},
  url = {https://aclanthology.org/2020.emnlp-main.574}
}""",
)

KOBAYASHI_2021 = Paper(
    "kobayashi2021",
    """@inproceedings{kobayashi-etal-2021-incorporating,
  title = {Incorporating Residual and Normalization Layers into Analysis of Masked Language Models},
  author = {Kobayashi, Goro and Kuribayashi, Tatsuki and Yokoi, Sho and Inui, Kentaro},
  booktitle = {Proceedings of the 2021 Conference on Empirical Methods in Natural Language Processing},
  publisher = {Association for Computational Linguistics},
  year = {2021},
  month = nov,
  pages = {4547--4568},
  doi = {10.18653/v1/2021.emnlp-main.373},
  url = {https://aclanthology.org/2021.emnlp-main.373}
}""",
)

CUNNINGHAM_2026 = Paper(
    "cunningham2026",
    """@misc{cunningham-cirone-2026-contribution,
  title = {Contribution Weights: A Geometrical Analysis of Self-Attention Transformers},
  author = {Cunningham, Harry Jake and Muca Cirone, Nicola},
  year = {2026},
  eprint = {2606.07604},
  archivePrefix = {arXiv},
  primaryClass = {cs.LG},
  url = {https://arxiv.org/abs/2606.07604}
}""",
)

KOBAYASHI_2024 = Paper(
    "kobayashi2024",
    """@inproceedings{kobayashi-etal-2024-analyzing,
  title = {Analyzing Feed-Forward Blocks in Transformers through the Lens of Attention Maps},
  author = {Kobayashi, Goro and Kuribayashi, Tatsuki and Yokoi, Sho and Inui, Kentaro},
  booktitle = {The Twelfth International Conference on Learning Representations (ICLR)},
  year = {2024},
  url = {https://arxiv.org/abs/2302.00456}
}""",
)

GU_2025 = Paper(
    "gu2025",
    """@inproceedings{gu-etal-2025-attention-sink,
  title = {When Attention Sink Emerges in Language Models: An Empirical View},
  author = {Gu, Xiangming and Pang, Tianyu and Du, Chao and Liu, Qian and Zhang, Fengzhuo and Du, Cunxiao and Wang, Ye and \
Lin, Min},
  booktitle = {The Thirteenth International Conference on Learning Representations (ICLR)},
  year = {2025},
  url = {https://arxiv.org/abs/2410.10781}
}""",
)

SUN_2024 = Paper(
    "sun2024",
    """@inproceedings{sun-etal-2024-massive,
  title = {Massive Activations in Large Language Models},
  author = {Sun, Mingjie and Chen, Xinlei and Kolter, J. Zico and Liu, Zhuang},
  booktitle = {First Conference on Language Modeling (COLM)},
  year = {2024},
  url = {https://arxiv.org/abs/2402.17762}
}""",
)

MARUTA_2024 = Paper(
    "maruta2024",
    """@misc{maruta-matsuzaki-2024-outlier,
  title = {自己注意機構のアテンション重みが特定の種類のトークンに集中する現象と外れ値次元の関係},
  author = {丸田, 佳 and 松崎, 拓也},
  howpublished = {東京理科大学},
  year = {2024},
  note = {In Japanese. Outlier dimensions and the concentration of attention weights on particular kinds of tokens}
}""",
)

MODARRESSI_2023 = Paper(
    "modarressi2023",
    """@inproceedings{modarressi-etal-2023-decompx,
  title = {DecompX: Explaining Transformers Decisions by Propagating Token Decomposition},
  author = {Modarressi, Ali and Fayyaz, Mohsen and Aghazadeh, Ehsan and Yaghoobzadeh, Yadollah and Pilehvar, Mohammad Taher},
  booktitle = {Proceedings of the 61st Annual Meeting of the Association for Computational Linguistics (Volume 1: Long Papers)},
  publisher = {Association for Computational Linguistics},
  year = {2023},
  month = jul,
  pages = {2649--2664},
  doi = {10.18653/v1/2023.acl-long.149},
  url = {https://aclanthology.org/2023.acl-long.149}
}""",
)

ACHTIBAT_2024 = Paper(
    "achtibat2024",
    """@inproceedings{achtibat-etal-2024-attnlrp,
  title = {AttnLRP: Attention-Aware Layer-Wise Relevance Propagation for Transformers},
  author = {Achtibat, Reduan and Hatefi, Sayed Mohammad Vakilzadeh and Dreyer, Maximilian and Jain, Aakriti and \
Wiegand, Thomas and Lapuschkin, Sebastian and Samek, Wojciech},
  booktitle = {Proceedings of the 41st International Conference on Machine Learning},
  year = {2024},
  url = {https://arxiv.org/abs/2402.05602}
}""",
)

ABNAR_2020 = Paper(
    "abnar2020",
    """@inproceedings{abnar-zuidema-2020-quantifying,
  title = {Quantifying Attention Flow in Transformers},
  author = {Abnar, Samira and Zuidema, Willem},
  booktitle = {Proceedings of the 58th Annual Meeting of the Association for Computational Linguistics},
  publisher = {Association for Computational Linguistics},
  year = {2020},
  month = jul,
  pages = {4190--4197},
  doi = {10.18653/v1/2020.acl-main.385},
  url = {https://aclanthology.org/2020.acl-main.385}
}""",
)

MODARRESSI_2022 = Paper(
    "modarressi2022",
    """@inproceedings{modarressi-etal-2022-globenc,
  title = {GlobEnc: Quantifying Global Token Attribution by Incorporating the Whole Encoder Layer in Transformers},
  author = {Modarressi, Ali and Fayyaz, Mohsen and Yaghoobzadeh, Yadollah and Pilehvar, Mohammad Taher},
  booktitle = {Proceedings of the 2022 Conference of the North American Chapter of the Association for \
Computational Linguistics},
  publisher = {Association for Computational Linguistics},
  year = {2022},
  month = jul,
  pages = {258--271},
  doi = {10.18653/v1/2022.naacl-main.19},
  url = {https://aclanthology.org/2022.naacl-main.19}
}""",
)

FERRANDO_2022 = Paper(
    "ferrando2022",
    """@inproceedings{ferrando-etal-2022-measuring,
  title = {Measuring the Mixing of Contextual Information in the Transformer},
  author = {Ferrando, Javier and Gállego, Gerard I. and Costa-jussà, Marta R.},
  booktitle = {Proceedings of the 2022 Conference on Empirical Methods in Natural Language Processing},
  publisher = {Association for Computational Linguistics},
  year = {2022},
  month = dec,
  pages = {8698--8714},
  doi = {10.18653/v1/2022.emnlp-main.595},
  url = {https://aclanthology.org/2022.emnlp-main.595}
}""",
)

FERRANDO_2022_PLUS = Paper(
    "ferrando2022b",
    """@inproceedings{ferrando-etal-2022-towards,
  title = {Towards Opening the Black Box of Neural Machine Translation: Source and Target Interpretations of the Transformer},
  author = {Ferrando, Javier and Gállego, Gerard I. and Alastruey, Belen and Escolano, Carlos and Costa-jussà, Marta R.},
  booktitle = {Proceedings of the 2022 Conference on Empirical Methods in Natural Language Processing},
  publisher = {Association for Computational Linguistics},
  year = {2022},
  month = dec,
  pages = {8756--8769},
  doi = {10.18653/v1/2022.emnlp-main.599},
  url = {https://aclanthology.org/2022.emnlp-main.599}
}""",
)

MOHEBBI_2023 = Paper(
    "mohebbi2023",
    """@inproceedings{mohebbi-etal-2023-quantifying,
  title = {Quantifying Context Mixing in Transformers},
  author = {Mohebbi, Hosein and Zuidema, Willem and Chrupała, Grzegorz and Alishahi, Afra},
  booktitle = {Proceedings of the 17th Conference of the European Chapter of the Association for Computational Linguistics},
  publisher = {Association for Computational Linguistics},
  year = {2023},
  month = may,
  pages = {3378--3400},
  doi = {10.18653/v1/2023.eacl-main.245},
  url = {https://aclanthology.org/2023.eacl-main.245}
}""",
)

DEYOUNG_2020 = Paper(
    "deyoung2020",
    """@inproceedings{deyoung-etal-2020-eraser,
  title = {ERASER: A Benchmark to Evaluate Rationalized NLP Models},
  author = {DeYoung, Jay and Jain, Sarthak and Rajani, Nazneen Fatema and Lehman, Eric and Xiong, Caiming and \
Socher, Richard and Wallace, Byron C.},
  booktitle = {Proceedings of the 58th Annual Meeting of the Association for Computational Linguistics},
  publisher = {Association for Computational Linguistics},
  year = {2020},
  month = jul,
  pages = {4443--4458},
  doi = {10.18653/v1/2020.acl-main.408},
  url = {https://aclanthology.org/2020.acl-main.408}
}""",
)

CLARK_2019 = Paper(
    "clark2019",
    """@inproceedings{clark-etal-2019-bert,
  title = {What Does BERT Look at? An Analysis of BERT's Attention},
  author = {Clark, Kevin and Khandelwal, Urvashi and Levy, Omer and Manning, Christopher D.},
  booktitle = {Proceedings of the 2019 ACL Workshop BlackboxNLP: Analyzing and Interpreting Neural Networks for NLP},
  publisher = {Association for Computational Linguistics},
  year = {2019},
  month = aug,
  pages = {276--286},
  doi = {10.18653/v1/W19-4828},
  url = {https://aclanthology.org/W19-4828}
}""",
)

DING_2019 = Paper(
    "ding2019",
    """@inproceedings{ding-etal-2019-saliency,
  title = {Saliency-driven Word Alignment Interpretation for Neural Machine Translation},
  author = {Ding, Shuoyang and Xu, Hainan and Koehn, Philipp},
  booktitle = {Proceedings of the Fourth Conference on Machine Translation (Volume 1: Research Papers)},
  publisher = {Association for Computational Linguistics},
  year = {2019},
  month = aug,
  pages = {1--12},
  doi = {10.18653/v1/W19-5201},
  url = {https://aclanthology.org/W19-5201}
}""",
)
