"""Who answers: clients of model servers, behind one protocol.

`protocol` is the contract, `chat` speaks chat completions, `routing` picks the server for a model name,
`rehearsal` is the embedded stand-in for a model. May import `core` and `domain`.
Begin with `protocol`.
"""
