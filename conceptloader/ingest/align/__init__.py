"""Where spans lie in the token stream: which tokens are theirs, overlaps resolved, eos appended.

Open spans.py first, then align.py, the rule by which a token belongs to a span.
"""
