"""A share over items that come in groups, with an interval that allows for how those of a group depend on each other."""

from typing import NamedTuple

import numpy as np

from normscope.statistics.intervals import share_interval


class ShareMoments(NamedTuple):
    """Sums over sentences of their correct arcs c and arcs n, from which a share and its interval follow."""

    correct: np.ndarray
    """Σ c."""
    squares: np.ndarray
    """Σ c²."""
    products: np.ndarray
    """Σ c n."""
    arcs: np.ndarray
    """Σ n."""
    arc_squares: np.ndarray
    """Σ n²."""
    sentences: np.ndarray
    """Number of sentences with n > 0."""

    @property
    def share(self) -> np.ndarray:
        """p = Σ c / Σ n; NaN without arcs."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.correct / np.asarray(self.arcs, dtype=float))

    def interval(self) -> tuple[np.ndarray, np.ndarray]:
        """The 95% interval of the share by Clopper and Pearson, with sentences as the sample.

        The arcs of a sentence depend on each other. They count as n* = p(1 − p)/s² independent ones, where s² = S/(S−1)
        Σ (c − p n)² / (Σ n)² is the linearised variance of a ratio over S sentences. n* is at most Σ n, and at least
        (Σ n)² / Σ n²: the arcs of a sentence then are all right or all wrong together. This is n* where all arcs are right, or
        all wrong, which does not show how they depend on each other. NaN with fewer than two sentences.

        Source: Korn & Graubard 1998, Survey Methodology 24(2), pages 193-201; Cochran 1977, Sampling Techniques, section 6.3.
        """
        p, arcs = self.share, np.asarray(self.arcs, dtype=float)
        residual = np.maximum(self.squares - 2 * p * self.products + p**2 * self.arc_squares, 0)
        with np.errstate(invalid="ignore", divide="ignore"):
            variance = residual * (self.sentences / (self.sentences - 1.0)) / arcs**2
            fewest = np.where(self.sentences > 1, arcs**2 / self.arc_squares, np.nan)
            # fmax: 0/0, where all arcs are right or all are wrong, is the fewest.
            effective = np.fmax(np.minimum(p * (1 - p) / variance, arcs), fewest)
        return share_interval(p, np.where(np.isnan(fewest), np.nan, effective))
