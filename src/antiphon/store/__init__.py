"""What is remembered: the journal's storage, behind one protocol.

`protocol` is the contract and the values that cross it; `memory` and `sqlite` keep it, and one
conformance suite (`antiphon.testing.store_conformance`) holds for all. May import `core` and `domain`.
Begin with `protocol`.
"""
