"""The same networks as plain functions of JAX: ``loss(params, *inputs)``.

``params`` has the weights of the torch model by name and in torch's layout, so both start from the
same numbers and their first losses can be compared. A network without a module here has no twin.
"""
