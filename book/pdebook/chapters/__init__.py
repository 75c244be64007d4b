"""One folder per subject: laws (closed forms), attack (statements to attack), measure (trained and measured).

Most have the name of their chapter; a chapter may show the subjects of two. No folder imports another.
"""
