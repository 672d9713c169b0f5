"""The command line: a customer of the server and the engine.

`entry.main` is the program, `app` its commands, one module each (`serve`, `dev`, `demo`, `responses`,
`doctor`, `config`). `settings` is the schema of the configuration, `layers` where its values come from,
`loading` how they become one. May import everything below. Begin with `app`, then `settings`.
"""
