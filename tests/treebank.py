"""A small treebank written for the tests: comments, multi-word tokens, empty nodes, enhanced dependencies, missing spaces."""

from pathlib import Path

_SENTENCES = [
    """\
# sent_id = 1
# text = The old cat doesn't see the river.
1	The	the	DET	DT	_	3	det	3:det	_
2	old	old	ADJ	JJ	Degree=Pos	3	amod	3:amod	_
3	cat	cat	NOUN	NN	Number=Sing	6	nsubj	6:nsubj	_
4-5	doesn't	_	_	_	_	_	_	_	_
4	does	do	AUX	VBZ	_	6	aux	6:aux	_
5	n't	not	PART	RB	_	6	advmod	6:advmod	_
6	see	see	VERB	VB	_	0	root	0:root	_
7	the	the	DET	DT	_	8	det	8:det	_
8	river	river	NOUN	NN	Number=Sing	6	obj	6:obj	SpaceAfter=No
9	.	.	PUNCT	.	_	6	punct	6:punct	_
""",
    """\
# a comment without a value
1	We	we	PRON	PRP	_	2	nsubj	2:nsubj	_
2	walk	walk	VERB	VBP	_	0	root	0:root	_
3-4	zum	_	_	_	_	_	_	_	_
3	zu	zu	ADP	IN	_	5	case	5:case	_
4	dem	der	DET	DT	_	5	det	5:det	_
5	river	river	NOUN	NN	_	2	obl	2:obl:zu	SpaceAfter=No
6	,	,	PUNCT	,	_	8	punct	8:punct	_
7	they	they	PRON	PRP	_	8	nsubj:pass	8:nsubj:pass	_
8	run	run	VERB	VBP	_	2	conj	2:conj	_
8.1	walk	walk	VERB	VBP	_	_	_	8:conj	_
9	!	!	PUNCT	.	_	2	punct	2:punct	_
""",
    """\
# text = Dogs bark
1	Dogs	dog	NOUN	NNS	_	2	nsubj	_	_
2	bark	bark	VERB	VBP	_	0	root	_	_
""",
    """\
1	Old	old	ADJ	JJ	_	2	amod	_	_
2	dogs	dog	NOUN	NNS	_	3	nsubj	_	_
3	see	see	VERB	VBP	_	0	root	_	_
4	a	a	DET	DT	_	6	det	_	_
5	small	small	ADJ	JJ	_	6	amod	_	_
6	hippopotamus	hippopotamus	NOUN	NN	_	3	obj	_	_
7	unhappily	unhappily	ADV	RB	_	3	advmod	_	SpaceAfter=No
8	.	.	PUNCT	.	_	3	punct	_	_
""",
]

TREEBANK = "\n".join(_SENTENCES) + "\n"

TEXTS = [
    "The old cat doesn't see the river.",
    "We walk zum river, they run !",
    "Dogs bark",
    "Old dogs see a small hippopotamus unhappily.",
]
"""The texts of its sentences."""


def write_treebank(folder: Path, repeats: int = 1) -> Path:
    """The treebank as a file."""
    path = folder / "small.conllu"
    path.write_text("\n".join([TREEBANK] * repeats))
    return path
