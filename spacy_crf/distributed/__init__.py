"""Work that processes share, on one machine or on the machines of a cluster."""
