"""Work that processes of one machine, or of a cluster, share and continue."""
