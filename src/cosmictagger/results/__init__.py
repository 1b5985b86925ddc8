"""Files of an inference pass: predictions, event displays, curves and a report page.

`Collector` takes the pass batch by batch and never holds more than the batch at hand and a few
events for the displays, so its memory does not grow with the file. `write_files` then writes the
files, of which `writer` has a list.

Every file appears complete or not at all. A pass that ends in an exception leaves none of them.
Where several instances share a pass, each has a `Collector`, and one joins their parts.
"""

from cosmictagger.results.writer import Collector, write_files

__all__ = ["Collector", "write_files"]
