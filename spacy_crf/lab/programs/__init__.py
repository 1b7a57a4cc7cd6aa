"""Best labellings under rules whose automata fit into no graph of states, or more cheaply than through one."""
