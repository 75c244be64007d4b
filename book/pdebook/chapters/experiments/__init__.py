"""How a similarity number fools you: what strangers, copies and relatives score."""
