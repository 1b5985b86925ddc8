"""Files of an inference pass: predictions, event displays, curves and a report page.

`ResultsWriter` takes the pass batch by batch and never holds more than the batch at hand and a few
events for the displays, so its memory does not grow with the file::

    with ResultsWriter(output_dir, (1280, 2048), downsample=1, proof=backend.proof) as results:
        for batch in loader:
            step = backend.evaluate_step(batch)
            results.add(batch, step.logits, metrics.per_event(step.logits, batch.label))
    print(results.files.report)

It writes into ``output_dir``:

==========================  ======================================================================
``predictions.h5``          scores of every non-zero pixel in the larcv3 layout (`predictions`)
``event_metrics.csv``       one line per event, the metrics of section 6 of the specification
``displays/*.png``          the worst and the best events (`displays`)
``curves.png``              training curves, if the folder has train or test CSV files (`curves`)
``report.html``             one page that shows all of it and needs no network (`report`)
==========================  ======================================================================

Every file appears complete or not at all. A pass that ends in an exception leaves none of them.
Where several instances share a pass, each has a `Collector`, and `parts` joins what they keep.
"""

from cosmictagger.results.writer import Collector, ResultsWriter, WrittenFiles, write, write_files

__all__ = ["Collector", "ResultsWriter", "WrittenFiles", "write", "write_files"]
