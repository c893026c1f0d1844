"""Commands that ask about runs: trace, locate, query."""
