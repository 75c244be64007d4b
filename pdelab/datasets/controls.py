"""What scores without understanding: no accuracy is shown without these beside it."""

import numpy as np
import torch

from pdelab.datasets import listops, texts
from pdelab.datasets.base import Dataset, Examples, majority
from pdelab.options import instance


def of(data: Dataset) -> dict[str, float]:
    """Test accuracies of what knows little, fitted on the training examples.

    majority: always the commonest answer. For ListOps also the root operator alone and a boosted tree on counts; for
    other classes `linear`, ridge regression on the flattened input or on the counts of symbols; for images `nearest`,
    the answer of the nearest training image, so good on digits that their accuracy tells nothing of understanding. For
    the synthetic topics the exact Bayes rule, which nothing beats on average; for next symbols `previous`, the
    commonest after the last one.
    """
    if instance("data", data, Dataset).name in listops.GRAMMARS:
        return listops.controls(data)
    found = {"majority": majority(data)}
    if data.train.y.ndim == 2:
        return found | {"previous": _previous(data)}
    found["linear"] = _linear(data)
    if data.symbols is None:
        found["nearest"] = _nearest(data)
    return found | ({"bayes": texts.topics_bayes(data)} if data.name == "synthetic-topics" else {})


def _previous(data: Dataset) -> float:
    """Accuracy of the commonest next symbol after each symbol; it sees one symbol, a model the whole past."""
    table = torch.zeros(data.classes, data.classes)
    pairs = torch.stack([data.train.x.flatten(), data.train.y.flatten()]).long()
    table.index_put_(tuple(pairs), torch.ones(1), accumulate=True)
    return (table.argmax(dim=1)[data.test.x.long()] == data.test.y).double().mean().item()


def _linear(data: Dataset) -> float:
    # scikit-learn takes a second to load, which only those who ask for controls should wait
    from sklearn.linear_model import RidgeClassifier

    classifier = RidgeClassifier(alpha=1.0).fit(_features(data, data.train), data.train.y.numpy())
    return float(classifier.score(_features(data, data.test), data.test.y.numpy()))


def _nearest(data: Dataset) -> float:
    """Accuracy of the answer of the nearest training example, in the Euclidean distance of the flattened inputs."""
    train = data.train.x.flatten(1)
    found = [torch.cdist(part.x.flatten(1), train).argmin(dim=1) for part in data.test.batches(256)]
    return (data.train.y[torch.cat(found)] == data.test.y).double().mean().item()


def _features(data: Dataset, examples: Examples):
    """Continuous tokens flattened; of symbols, how often each occurs, as a sparse matrix (example, symbol)."""
    if data.symbols is None:
        return examples.x.flatten(1).numpy()
    from scipy.sparse import csr_array

    real = examples.mask if examples.mask is not None else torch.ones_like(examples.x, dtype=torch.bool)
    rows = torch.arange(len(examples)).unsqueeze(1).expand_as(examples.x)[real].numpy()
    columns = examples.x[real].numpy()
    return csr_array((np.ones(len(rows)), (rows, columns)), shape=(len(examples), data.symbols))
