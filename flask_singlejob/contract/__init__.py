"""The contract of a store as tests, in parts; :class:`flask_singlejob.testing.StoreContract` joins them.

Needs no pytest by itself: plain methods and plain asserts.
"""
