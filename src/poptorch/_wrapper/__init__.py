"""The object that ``trainingModel`` and ``inferenceModel`` return, and what it warns of."""
