"""Training on shards of a corpus: `cut` writes the pieces, `shards` leads, `work` is what each worker does, `sums` and `mixing`
put together what they find: derivatives, or the weights of optimizers that learn from one sequence after the other."""
