"""The error that stops poprun before anything is launched."""


class Problem(Exception):
    """One sentence for the user, and the exit status that goes with it.

    Args:
        sentence: What was asked, what was found and what to do.
        status: Exit status of poprun; never 0.
    """

    def __init__(self, sentence: str, status: int = 2) -> None:
        super().__init__(sentence)
        self.status = status


#: Of instances, replicas, domains and hosts: more than any run has, and lists stay small.
MOST = 65536
NOT_FOUND = 127  # what shells say of a program that is not there
