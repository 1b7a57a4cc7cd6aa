"""What rules add to the scores of tokens."""

import numpy as np

from . import kernel


@kernel
def add_prices(emissions, prices, kinds):
    """Scores of tokens whose kind has a price for each state.

    emissions (float64[n, S]), prices (float64[K, S]), kinds (int32[n])
    RETURNS (float64[n, S]): emissions[t] + prices[kinds[t]].
    """
    priced = np.empty_like(emissions)
    for t in range(emissions.shape[0]):
        before, price, after = emissions[t], prices[kinds[t]], priced[t]
        for j in range(len(after)):
            after[j] = before[j] + price[j]
    return priced
