"""How fast a run reads its corpus, and how long the rest of it will take."""

import dataclasses

from normscope.rounding import counted


@dataclasses.dataclass(frozen=True)
class Throughput:
    """The state of a run at one moment."""

    examples: int
    """Examples read, those before a resumption included."""
    total: int | None
    """Examples to read, if known."""
    new_examples: int
    """Examples read since this process started."""
    new_tokens: int
    """Tokens analysed since then."""
    seconds: float
    """Seconds since then."""
    model_seconds: float
    """Seconds of these in which the model and the analyses ran."""

    @property
    def tokens_per_second(self) -> float:
        """Tokens analysed per second; 0 before any time has passed."""
        return self.new_tokens / self.seconds if self.seconds else 0.0

    @property
    def examples_per_second(self) -> float:
        """Examples read per second; 0 before any time has passed."""
        return self.new_examples / self.seconds if self.seconds else 0.0

    @property
    def model_share(self) -> float:
        """Share of the time in which the model and the analyses ran; 0 before any time has passed."""
        return self.model_seconds / self.seconds if self.seconds else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds until the corpus has been read; None if its size or the speed is unknown."""
        if self.total is None or not self.examples_per_second:
            return None
        return max(self.total - self.examples, 0) / self.examples_per_second

    def sentence(self) -> str:
        """The state as a line for a log."""
        read = (
            counted(self.examples, "example")
            if self.total is None
            else f"{self.examples:,} of {counted(self.total, 'example')}"
        )
        parts = [read, f"{self.tokens_per_second:,.0f} tokens/s"]
        if self.seconds_left is not None:
            parts.append(f"{duration(self.seconds_left)} left")
        return ", ".join(parts)


def duration(seconds: float) -> str:
    """A duration as a person would round it: `40 s`, `5 min`, `2 h 10 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
