"""What a preset says of itself: the comment at the top of its file."""


def head_comment(preset: str) -> tuple[str, str]:
    """The command in the first comment of a preset (empty if there is none), and the sentences in the lines after it."""
    comments = [line[2:] for line in preset.splitlines() if line.startswith("# ")]
    command = next((line for line in comments if line.startswith("python run.py")), "")
    sentences = [line for line in comments if not line.startswith(("python run.py", "@package"))]
    return command.replace("python run.py", "normscope", 1), " ".join(sentences)
