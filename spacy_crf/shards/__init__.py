"""Training on shards of a corpus: `cut` writes the pieces, `shards` runs in the main process, `work` runs in each worker, and
`mixing` combines the results of the workers."""
