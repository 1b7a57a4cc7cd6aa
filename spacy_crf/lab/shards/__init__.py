"""Training on shards of a corpus: `cut` writes the pieces, `shards` leads, `work` is done by each worker, and `mixing` puts their
results together."""
