"""Which sample comes when: pure integer functions of (config, seed, global sample index)."""
