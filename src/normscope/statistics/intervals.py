"""Confidence intervals of means and shares, and a test of means that is valid for few observations."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.special
from jaxtyping import Float

CONFIDENCE = 0.95
RESAMPLES = 4_999
"""Resamples of a test; no p-value is below 2 / (RESAMPLES + 1)."""

FEWEST = 5
"""Observations below which no interval is reported."""

_FEWEST_DRAWN, _MOST_DRAWN = 4, 300
"""A resample has half as many observations as the sample, but no fewer and no more than these."""

_WIDEST = 6.0
"""In units of Student's quantile, how far a quantile of T may be from zero. Of few observations, a resample may draw two that
are nearly equal, again and again: its spread is then tiny by chance, and T says nothing (from five means between 28.76 and
29.01, an interval began at 22.8)."""

_ROUNDING = 1e-12
"""Relative to the largest value: a spread below this is float rounding."""


class Interval(NamedTuple):
    """A mean and the ends of its confidence interval, which are NaN where there is none."""

    mean: float
    low: float
    high: float

    @property
    def contains_zero(self) -> bool:
        """Whether a difference is not told from 0. Without an interval, nothing is known."""
        return self.low <= 0 <= self.high

    @property
    def ends(self) -> tuple[float, float]:
        """The lower and the upper end."""
        return self.low, self.high


def mean_interval(values: Sequence[float] | np.ndarray) -> Interval:
    """The mean of a sample with its 95% interval by Student's t; the ends are NaN for a single value.

    Raises:
        ValueError: If there is no value.
    """
    if not len(values):
        raise ValueError("the mean of no value")
    mean = float(np.mean(values))
    if len(values) == 1:
        return Interval(mean, float("nan"), float("nan"))
    error = float(np.std(values, ddof=1)) / np.sqrt(len(values))
    half = float(scipy.special.stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2)) * error
    return Interval(mean, mean - half, mean + half)


def interval_over_texts(values: Sequence[float] | np.ndarray) -> Interval:
    """`mean_interval` of one number for each text; without an interval for fewer than FEWEST texts.

    Raises:
        ValueError: If there is no value.
    """
    found = mean_interval(values)
    return found if len(values) >= FEWEST else Interval(found.mean, float("nan"), float("nan"))


def within_whole(
    mean: Float[np.ndarray, "*shares"], half: Float[np.ndarray, "*shares"]
) -> tuple[Float[np.ndarray, "*shares"], Float[np.ndarray, "*shares"]]:
    """The ends of an interval of a share in [0, 1], which do not lie beyond 0 and 1.

    The interval is symmetric in log(p / (1 − p)), whose standard error is that of p divided by p (1 − p) (delta method).

    Args:
        mean: The share.
        half: Half the width of its interval if it were symmetric in p.
    """
    spread = mean * (1 - mean)
    varies = spread > 0
    centre, reach = scipy.special.logit(np.where(varies, mean, 0.5)), half / np.where(varies, spread, 1.0)
    low, high = scipy.special.expit(centre - reach), scipy.special.expit(centre + reach)
    known = np.where(np.isnan(half), np.nan, mean)
    return np.where(varies, low, known), np.where(varies, high, known)


def share_interval(
    share: Float[np.ndarray, "*shares"], trials: Float[np.ndarray, "*shares"]
) -> tuple[Float[np.ndarray, "*shares"], Float[np.ndarray, "*shares"]]:
    """The 95% interval of a share of successes among independent trials, by Clopper and Pearson.

    Its ends are the shares under which so many successes, or so few, have a probability of 2.5%; it is never of width zero. NaN
    where share or trials are.

    Args:
        share: In [0, 1].
        trials: Their number, which may be fractional: an effective number of dependent trials.

    Source: Clopper & Pearson 1934, https://doi.org/10.1093/biomet/26.4.404.
    """
    tail = (1 - CONFIDENCE) / 2
    right, wrong = share * trials, (1 - share) * trials
    low = np.where(right > 0, scipy.special.betaincinv(np.where(right > 0, right, np.nan), wrong + 1, tail), 0.0)
    high = np.where(wrong > 0, scipy.special.betaincinv(right + 1, np.where(wrong > 0, wrong, np.nan), 1 - tail), 1.0)
    known = np.isfinite(right)
    return np.where(known, low, np.nan), np.where(known, high, np.nan)


class Sample(NamedTuple):
    """Observations and their weights. Leading axes are independent samples."""

    values: Float[np.ndarray, "*samples observation"]
    weights: Float[np.ndarray, "*samples observation"]
    """Positive, on any scale: the number of tokens of a sequence, for example."""


class MeanTest(NamedTuple):
    """A weighted mean or a difference of two, tested against zero. All fields but the first are NaN where no test is valid."""

    mean: Float[np.ndarray, "*samples"]
    low: Float[np.ndarray, "*samples"]
    high: Float[np.ndarray, "*samples"]
    """Ends of the 95% interval, which excludes zero exactly if p ≤ 0.05."""
    p: Float[np.ndarray, "*samples"]
    """Two-sided. The smallest value that `smallest_p` allows is an upper bound."""


def smallest_p(resamples: int = RESAMPLES) -> float:
    """The smallest p-value that so many resamples can show."""
    return 2 / (resamples + 1)


def mean_test(sample: Sample, other: Sample | None = None, *, resamples: int = RESAMPLES) -> MeanTest:
    """Whether a weighted mean is zero, or equal to that of an independent sample; with its interval.

    T = D / s, where D = Σ wᵢxᵢ with Σ wᵢ = 1 (minus the same of the other sample) and s is its jackknife standard error. The
    quantiles of T are those of a studentised bootstrap, or Student's where these are further from zero, but at most six times
    as far. Student's alone reject too often if differences are skewed, and the bootstrap's alone if many differences are
    equal. A resample has half as many
    observations as the sample, because T of fewer observations is more skewed: this errs on the safe side where a sample is too
    small to show how skewed its distribution is. Degrees of freedom follow from the weights; of two samples, the fewer count.
    docs/guides/trust.md has the rates of false positives.

    No test is valid, and interval and p are NaN, if the observations of a sample do not vary, or so many are equal that an end
    of the interval is infinite.

    Args:
        sample: At least two observations each. Differences of pairs are one sample.
        other: An independent sample, if means of two are compared.
        resamples: Number of resamples.

    Source: Efron & Tibshirani 1993, An Introduction to the Bootstrap, sections 11.2 and 12.5; Bickel, Götze & van Zwet 1997,
    Statistica Sinica 7(1), on smaller resamples; Satterthwaite 1946, https://doi.org/10.2307/3002019.
    """
    samples = [sample] if other is None else [sample, other]
    observed = [_moments(*one) for one in samples]
    mean, error = _difference(observed)
    varies = [np.ptp(one.values, axis=-1) > _ROUNDING * np.abs(one.values).max(axis=-1) for one in samples]
    error = np.where(np.all(varies, axis=0), error, np.nan)
    statistic = mean / error
    freedom = np.min([_freedom(one.weights) for one in samples], axis=0)
    student = scipy.special.stdtrit(freedom, (1 + CONFIDENCE) / 2)
    statistics = _resampled(samples, observed, error, resamples)
    widest = _WIDEST * np.asarray(student)[..., None]
    statistics = np.where(np.isinf(statistics), statistics, np.clip(statistics, -widest, widest))
    statistics = np.sort(statistics, axis=-1)
    cut = round((resamples + 1) * (1 - CONFIDENCE) / 2)
    low = mean - error * np.maximum(student, statistics[..., resamples - cut])
    high = mean + error * np.maximum(student, -statistics[..., cut - 1])
    beyond = np.minimum(
        (statistics >= statistic[..., None]).sum(axis=-1), (statistics <= statistic[..., None]).sum(axis=-1)
    )
    bootstrap = np.minimum(1.0, smallest_p(resamples) * (1 + beyond))
    p = np.maximum(bootstrap, 2 * scipy.special.stdtr(freedom, -np.abs(statistic)))
    testable = np.isfinite(low) & np.isfinite(high)
    return MeanTest(mean, *(np.where(testable, values, np.nan) for values in (low, high, p)))


class _Moments(NamedTuple):
    mean: np.ndarray
    variance: np.ndarray
    """Squared standard error of the mean."""


def _moments(values: np.ndarray, weights: np.ndarray) -> _Moments:
    """The weighted mean over the last axis, and its variance by the jackknife: without xᵢ, D changes by wᵢ(xᵢ − D)/(1 − wᵢ)."""
    share = weights / weights.sum(axis=-1, keepdims=True)
    mean = (share * values).sum(axis=-1)
    changes = share * (values - mean[..., None]) / (1 - share)
    count = values.shape[-1]
    return _Moments(mean, (count - 1) / count * (changes**2).sum(axis=-1))


def _difference(moments: Sequence[_Moments]) -> tuple[np.ndarray, np.ndarray]:
    """The mean of one sample or the difference of two, and its standard error."""
    first, *rest = moments
    mean = first.mean - sum((other.mean for other in rest), np.zeros(()))
    return mean, np.sqrt(sum((one.variance for one in rest), first.variance))


def _freedom(weights: np.ndarray) -> np.ndarray:
    """Degrees of freedom of Σ wᵢ²(xᵢ − D)², by Satterthwaite: n − 1 if all weights are equal."""
    squares = (weights / weights.max(axis=-1, keepdims=True)) ** 2
    return np.asarray(squares.sum(axis=-1) ** 2 / (squares**2).sum(axis=-1) - 1)


def _resampled(
    samples: Sequence[Sample], observed: Sequence[_Moments], error: np.ndarray, resamples: int
) -> np.ndarray:
    """T of resamples, centred at the observed mean; infinite for those whose observations do not vary."""
    moments = [_drawn(sample, seed, resamples) for seed, sample in enumerate(samples)]
    mean, spread = _difference(moments)
    off = mean - _difference(observed)[0][..., None]
    varies = spread > _ROUNDING * np.nan_to_num(error)[..., None]
    return np.where(varies, off / np.where(varies, spread, 1.0), np.copysign(np.inf, off))


def _drawn(sample: Sample, seed: int, resamples: int) -> _Moments:
    """Means of resamples and their variances."""
    *axes, count = sample.values.shape
    size = max(_FEWEST_DRAWN, min(count // 2, _MOST_DRAWN))
    draws = np.random.default_rng(seed).integers(count, size=(*axes, resamples, size))
    return _moments(*(np.take_along_axis(array[..., None, :], draws, axis=-1) for array in sample))
