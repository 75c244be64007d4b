"""Information in nats: estimators that say what they assume, how far they can be trusted, and what they see instead.

| question | function |
|---|---|
| labels, or numbers put into bins | `entropy`, `discrete_information`, `binned_information`, `per_unit_information` |
| densities, few features | `ksg` |
| Gaussian variables | `gaussian_information`, `gaussian_channel` |
| a deterministic T seen through noise | `channel_bounds`, `channel_information`, `noise_at_ratio` |
| a bound that can be trained | `barber_agakov`, `infonce`, `club`, `vib`; `printed_eq16` is P1 eq 16 |
| what a linear probe can use | `usable_information` |
| size and shape of a cloud of samples | `effective_dimension`, `sparsity`, `magnitude`, `diversity` |
| how often can a guess be right? | `largest_accuracy` |
| is it more than nothing? | `permutation_test` |

Samples are (sample, feature); `rows` makes them of a field.
"""

from pdelab.metrics.information.bins import (
    bin_codes,
    binned_information,
    discrete_information,
    entropy,
    per_unit_information,
)
from pdelab.metrics.information.channel import Bounds, channel_bounds, channel_information, noise_at_ratio
from pdelab.metrics.information.estimate import Estimate, Permuted, permutation_test, rows
from pdelab.metrics.information.fano import binary_divergence, largest_accuracy
from pdelab.metrics.information.gaussian import gaussian_channel, gaussian_information
from pdelab.metrics.information.neighbours import ksg
from pdelab.metrics.information.shape import diversity, effective_dimension, magnitude, sparsity
from pdelab.metrics.information.usable import usable_information
from pdelab.metrics.information.variational import barber_agakov, club, infonce, printed_eq16, vib

__all__ = [
    "Bounds",
    "Estimate",
    "Permuted",
    "barber_agakov",
    "bin_codes",
    "binary_divergence",
    "binned_information",
    "channel_bounds",
    "channel_information",
    "club",
    "discrete_information",
    "diversity",
    "effective_dimension",
    "entropy",
    "gaussian_channel",
    "gaussian_information",
    "infonce",
    "ksg",
    "largest_accuracy",
    "magnitude",
    "noise_at_ratio",
    "per_unit_information",
    "permutation_test",
    "printed_eq16",
    "rows",
    "sparsity",
    "usable_information",
    "vib",
]
