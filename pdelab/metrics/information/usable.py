"""The information that a linear probe can use: what Y a family of predictors gets out of T, in nats."""

import torch
from torch import Tensor

from pdelab.metrics.information.estimate import Estimate, labels, samples
from pdelab.options import positive, whole
from pdelab.seeds import derive


def usable_information(t: Tensor, y: Tensor, *, seed: int, folds: int = 5, strength: float = 1.0) -> Estimate:
    """H_V(Y) − H_V(Y|T) = E log f[t](y) − E log f[∅](y), V the softmax probes softmax(W t + b) (Xu et al. 2020).

    t: (n, feature); y: (n,), labels, each class at least `folds` times. f[t] is fitted on the other folds, on features
    of mean 0 and variance 1 there, and read on the fold held out; f[∅] is the share of each class in the other folds.
    seed: which examples share a fold; each class is spread evenly. strength: C of scikit-learn's
    LogisticRegression, a weight of 1/(2C) on |W|²; larger is a freer probe.

    The best f of the family would give at most I(T; Y). A fitted one gives less, below 0 where there was only noise to
    fit. A function of T can make it larger, as none can make I(T; Y): the data processing inequality does not bind
    it. The error is the standard deviation of the n held-out terms over √n; it leaves out that folds share training
    examples.
    """
    x = samples(t, "t").detach().cpu().double()
    y = _classes(y, len(x), folds).cpu()
    positive("strength", strength)
    # scikit-learn takes a second to load, which only those who ask for a probe should wait
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    terms = x.new_empty(len(x))
    split = StratifiedKFold(folds, shuffle=True, random_state=derive(seed, "folds"))
    for train, test in split.split(x.numpy(), y.numpy()):
        probe = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=2000))
        probe.fit(x.numpy()[train], y.numpy()[train])
        scores = torch.from_numpy(probe.decision_function(x.numpy()[test]))
        if scores.ndim == 1:  # of two classes it gives the score of the second alone
            scores = torch.stack([torch.zeros_like(scores), scores], dim=1)
        log_f = scores.log_softmax(dim=1)  # the logarithm of its probabilities would be −∞ for those below 1e−308
        log_none = (y[train].bincount().double() / len(train)).log()  # every class is in every training part
        terms[test] = log_f.gather(1, y[test].unsqueeze(1)).squeeze(1) - log_none[y[test]]
    return Estimate.mean_of(terms, f"linear probe, {folds} folds")


def _classes(y: Tensor, number: int, folds: int) -> Tensor:
    """y as 0, 1, …: (n,)."""
    folds = whole("folds", folds, 2)
    y = labels(y, number)
    counts = y.bincount()
    if len(counts) < 2:
        raise ValueError("y must hold at least two classes; with one there is nothing to tell")
    if counts.min() < folds:
        raise ValueError(
            f"y must hold each class at least folds = {folds} times; one of {len(counts)} classes occurs "
            f"{int(counts.min())} times: leave it out, or use fewer folds"
        )
    return y
