"""The page of supported models, from `architectures.csv` (see `docs/architectures.py`)."""

from docs.architectures import stored, stored_towers
from docs.hooks.markdown import ROOT, code, table
from normscope.analyses.registry import analyses
from normscope.maths.mixing import CROSS_ATTENTION_METHODS, METHODS, Method

BLOCKS: dict[str, str] = {
    "post": "y = LN(x + attention(x))",
    "pre": "y = x + attention(LN(x))",
    "parallel": "y = x + attention(LN(x)) + FFN(LN(x))",
    "branch": "y = x + LN(attention(x))",
}
"""The block, by the position of its norm."""


def page() -> str:
    """The page in Markdown."""
    text = (ROOT / "docs" / "reference" / "models.md").read_text()
    for marker, content in _generated().items():
        text = text.replace(f"<!-- {marker} -->", content)
    return text


def _generated() -> dict[str, str]:
    of_cross_attention = [code(name) for name, info in analyses().items() if info.supports_cross_attention]
    return {
        "counts": _counts(),
        "observed": _observed(),
        "refused": _refused(),
        "of cross-attention": ", ".join(of_cross_attention),
        "counts of towers": _counts_of_towers(),
        "observed towers": _observed_towers(),
        "refused towers": _refused_towers(),
    }


def _observed() -> str:
    rows = [
        (
            code(row.model_type),
            code(row.stack) if row.stack else "",
            f"{code(row.block)}: {BLOCKS[row.block]}",
            f"{row.network}: {row.reason}" if row.reason else row.network,
            row.attribution,
            ", ".join(map(code, _methods(row.block, row.stack))),
        )
        for row in stored()
        if row.block
    ]
    return table(("`model_type`", "`model.stack`", "block", "whole layer", "attribution", "mixing ratios"), rows)


def _refused() -> str:
    rows = [
        (code(row.model_type), code(row.stack) if row.stack else "", row.reason) for row in stored() if not row.block
    ]
    return table(("`model_type`", "`model.stack`", "why it cannot be observed"), rows)


def _counts_of_towers() -> str:
    rows = []
    for reads in ("images", "sound"):
        of_kind = [row for row in stored_towers() if row.reads == reads]
        blocks = [row for row in of_kind if row.block]
        layers = sum(row.network == "yes" for row in blocks)
        untried = sum(row.reason.startswith(("not tried", "needs the package")) for row in of_kind)
        refused = len(of_kind) - len(blocks) - untried
        rows.append((reads, *map(str, (len(of_kind), len(blocks), layers, refused, untried))))
    return table(("reads", "architectures", "attention blocks", "whole layers", "refused", "not tried"), rows)


def _observed_towers() -> str:
    rows = [
        (code(row.model_type), row.reads, code(row.block), row.network, row.tokens)
        for row in stored_towers()
        if row.block
    ]
    return table(("`model_type`", "reads", "block", "whole layer", "tokens"), rows)


def _refused_towers() -> str:
    rows = [(code(row.model_type), row.reads, row.reason) for row in stored_towers() if not row.block]
    return table(("`model_type`", "reads", "why it cannot be observed, or has not been tried"), rows)


def _counts() -> str:
    rows = []
    for name in ("masked", "causal", "sequence to sequence"):
        stacks = [row for row in stored() if name in row.lists.split(", ")]
        every = {row.model_type for row in stacks}
        blocks = every - {row.model_type for row in stacks if not row.block}
        layers = blocks - {row.model_type for row in stacks if row.block and row.network in ("no", "part")}
        followed = blocks - {row.model_type for row in stacks if row.attribution == "no"}
        rows.append((name, *(str(len(each)) for each in (every, blocks, layers, followed))))
    return table(("transformers' list", "architectures", "attention blocks", "whole layers", "attribution"), rows)


def _methods(block: str, stack: str) -> list[Method]:
    methods = next(each for position, each in METHODS.items() if position == block)
    return [each for each in methods if stack != "cross" or each in CROSS_ATTENTION_METHODS]
