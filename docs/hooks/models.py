"""The page of supported models, from the families and the presets."""

import yaml

from docs.hooks.markdown import ROOT, code, head_comment, table
from normscope.analyses.registry import analyses
from normscope.maths.composition import NormPosition
from normscope.maths.mixing import METHODS
from normscope.models.families import FAMILIES, STACKS

BLOCKS: dict[NormPosition, str] = {
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
        "families": _families(),
        "stacks": _stacks(),
        "of cross-attention": ", ".join(of_cross_attention),
        "presets": _presets(),
    }


def _families() -> str:
    rows = [
        (code(name), f"{code(layout.norm_position)}: {BLOCKS[layout.norm_position]}", _methods(layout.norm_position))
        for name, layout in FAMILIES.items()
    ]
    return table(("`model_type`", "block", "mixing ratios"), rows)


def _stacks() -> str:
    rows = []
    for name, stacks in STACKS.items():
        for stack, layout in stacks.items():
            methods = ", ".join(code(method) for method in layout.methods)
            rows.append(
                (code(name), code(stack), f"{code(layout.norm_position)}: {BLOCKS[layout.norm_position]}", methods)
            )
    return table(("`model_type`", "`model.stack`", "block", "mixing ratios"), rows)


def _presets() -> str:
    rows = []
    for path in sorted((ROOT / "conf" / "model").glob("*.yaml")):
        _, sentence = head_comment(path)
        name = yaml.safe_load(path.read_text()).get("name", "")
        rows.append((code(f"model={path.stem}"), code(name) if name else "", sentence))
    return table(("preset", "on the Hub", ""), rows)


def _methods(position: NormPosition) -> str:
    return ", ".join(code(method) for method in METHODS[position])
