"""Search for best labellings under rules whose automata don't fit into a graph of states, or would make a costly one."""
