"""Data: each source with its public full form and a small form that needs no network.

A Dataset's name says which one it is, and stands in every result and figure made from it.
"""
