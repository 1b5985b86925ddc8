"""The command `poprun`: starts a program in several instances and monitors them.

`cli` is the command, `command_line` its options, `placement` assigns instances to hosts, `launch`
starts them through torch's elastic agent, `shim` is the process between poprun and each instance,
`output` joins their lines. Only `agent` loads torch, so that help and errors come immediately.
"""
