"""What acts: tools that the server runs on a model's behalf, behind one protocol.

`protocol` is the contract, `function` the pleasant form (`@tool`), `registry` several executors as one.
May import `core` and `domain`. Begin with `protocol`.
"""
