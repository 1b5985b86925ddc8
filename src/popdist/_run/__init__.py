"""The command `poprun`: starts a program in several instances and watches over them.

`cli` reads the command line, `plan` says which instance runs where, `launch` starts them through
torch's elastic agent, `shim` is the small process between poprun and each instance, `output` puts
their lines together. Only `agent` loads torch, so that help and errors come at once.
"""
