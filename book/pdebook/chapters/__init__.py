"""One folder per chapter: laws (closed forms), attack (statements to attack), measure (trained and measured)."""
