"""The result in plain words. Every sentence is computed, and must also be true of a bad model."""

from __future__ import annotations

import math

import numpy as np

from bayesrule.report.numbers import number, percent, plural
from bayesrule.report.predictions import HIGH, LOW, Classification, Regression
from bayesrule.report.reliability import accuracy_when_answering, wilson

FEWEST = 20  # below this many examples no verdict on calibration is given
NEAR_NINETY = (0.85, 0.95)


def headline(predictions: Classification | Regression) -> list[str]:
    """Sentences, the most important first."""
    if isinstance(predictions, Classification):
        sentences = [
            _right(predictions),
            _against_guessing(predictions),
            _when_it_says_ninety(predictions),
            _certainty(predictions),
            _handing_over(predictions),
        ]
    else:
        sentences = [
            _off(predictions),
            _against_the_mean(predictions),
            _intervals(predictions),
            _halves(predictions),
            _kinds_of_doubt(predictions),
        ]
    return [sentence for sentence in sentences if sentence]


def _right(predictions: Classification) -> str:
    share = float(predictions.correct.mean())
    return f"Right on {percent(share)} of {plural(len(predictions), 'unseen example')}."


def _against_guessing(predictions: Classification) -> str:
    guess = float(np.bincount(predictions.targets).max()) / len(predictions)
    if float(predictions.correct.mean()) <= guess:
        return f"That is no better than always answering the commonest class ({percent(guess)})."
    return f"Always answering the commonest class would be right on {percent(guess)}."


def _when_it_says_ninety(predictions: Classification) -> str:
    near = (predictions.confidence >= NEAR_NINETY[0]) & (predictions.confidence < NEAR_NINETY[1])
    if near.sum() < 10:
        return ""
    share, answers = float(predictions.correct[near].mean()), plural(int(near.sum()), "such answer")
    return f"When it says about 90 %, it is right {percent(share, 0)} of the time ({answers})."


def _certainty(predictions: Classification) -> str:
    confidence, right = predictions.confidence, predictions.correct
    claimed, kept = percent(float(confidence.mean())), percent(float(right.mean()))
    told = f"On average it claims to be {claimed} sure and is right {kept} of the time"
    if len(predictions) < FEWEST:
        return f"{told}; there are too few examples ({len(predictions)}) to say whether that is honest."
    surplus = confidence - right
    gap, chance = float(surplus.mean()), 2 * float(surplus.std(ddof=1)) / math.sqrt(len(predictions))
    if abs(gap) <= max(chance, 0.005):
        return f"{told}: as sure as it should be, as far as {plural(len(predictions), 'example')} can tell."
    return f"{told}: it is {'overconfident' if gap > 0 else 'too cautious'}."


def _handing_over(predictions: Classification) -> str:
    handed = round(len(predictions) / 10)
    if len(predictions) < FEWEST or predictions.correct.all():
        return ""
    kept = float(accuracy_when_answering(predictions)[len(predictions) - handed - 1])
    gain = kept - float(predictions.correct.mean())
    if gain <= 0:
        told = "Its certainty does not tell its right answers from its mistakes"
        return f"{told}: leaving out the least certain tenth gains nothing."
    told = f"Hand the least certain {plural(handed, 'example')} to a person"
    return f"{told}, and it is right on {percent(kept)} of the others."


def _off(predictions: Regression) -> str:
    error = _rmse(predictions.targets - predictions.mean)
    return f"Typically off by {number(error)} (root mean square) on {plural(len(predictions), 'unseen example')}."


def _against_the_mean(predictions: Regression) -> str:
    if len(predictions) < 2:
        return ""
    spread = _rmse(predictions.targets - predictions.targets.mean())
    if _rmse(predictions.targets - predictions.mean) >= spread:
        return f"That is no better than always answering their mean (off by {number(spread)})."
    return f"Always answering their mean would be off by {number(spread)}."


def _intervals(predictions: Regression) -> str:
    inside = predictions.inside
    share = float(inside.mean())
    held = f"{int(inside.sum())} of {plural(len(inside), 'example')}"
    told = f"Its 90 % intervals hold the truth {percent(share)} of the time ({held})"
    if len(predictions) < FEWEST:
        return f"{told}; too few examples to say whether that is honest."
    low, high = wilson(share, len(predictions))
    if low <= HIGH - LOW <= high:
        return f"{told}: as wide as they should be, as far as these can tell."
    fault = "too wide, it is too cautious" if share > HIGH - LOW else "too narrow, it is overconfident"
    return f"{told}: they are {fault}."


def _halves(predictions: Regression) -> str:
    if len(predictions) < 2 * FEWEST:
        return ""
    order = np.argsort(predictions.std, kind="stable")
    error = predictions.targets - predictions.mean
    surer, doubtful = (_rmse(error[half]) for half in np.array_split(order, 2))
    if doubtful <= surer:
        return "Its stated uncertainty does not tell large errors from small ones."
    return f"On the half it is surest of it is off by {number(surer)}, on the other half by {number(doubtful)}."


def _kinds_of_doubt(predictions: Regression) -> str:
    total = _rmse(predictions.std)
    if not 0 < total < math.inf:
        return ""
    share = percent((_rmse(predictions.epistemic_std) / total) ** 2, 0)
    unknown = "is what the model does not know and more data would lower"
    return f"Of its predictive variance {share} {unknown}; the rest is noise in the data."


def _rmse(error: np.ndarray) -> float:
    largest = float(np.abs(error).max())
    # Divided first: squares of very large or small numbers have no place in float64.
    return largest * float(np.sqrt(np.square(error / largest).mean())) if largest > 0 else 0.0
