"""Long work that the processes of one machine, or of a cluster, share, and continue after a stop."""
