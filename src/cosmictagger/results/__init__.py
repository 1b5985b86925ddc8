"""Files of an inference pass: predictions, event displays, curves and a report page.

`Collector` takes the pass batch by batch and never holds more than the batch at hand and a few
events for the displays, so its memory does not grow with the file. `write_files` then writes:

==========================  ======================================================================
``predictions.h5``          scores of every non-zero pixel in the larcv3 layout (`predictions`)
``event_metrics.csv``       one line per event, the metrics of section 6 of the specification
``displays/*.png``          the worst and the best events (`displays`)
``curves.png``              training curves, if the folder has train or test CSV files (`curves`)
``report.html``             one page that shows all of it and needs no network (`report`)
==========================  ======================================================================

Every file appears complete or not at all. A pass that ends in an exception leaves none of them.
Where several instances share a pass, each has a `Collector`, and one joins their parts.
"""

from cosmictagger.results.writer import Collector, write_files

__all__ = ["Collector", "write_files"]
