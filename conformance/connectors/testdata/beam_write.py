"""Writes 3,000 rows of the table "beam" in a pipeline on the DirectRunner."""

import datetime

import apache_beam as beam
from apache_beam.io.gcp.bigtableio import WriteToBigTable
from apache_beam.options.pipeline_options import PipelineOptions
from google.cloud.bigtable.row import DirectRow


def row(n):
    row = DirectRow(row_key=f"row{n:05}".encode())
    row.set_cell("f", b"square", str(n * n).encode(), timestamp=datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc))
    return row


with beam.Pipeline(options=PipelineOptions(["--runner=DirectRunner"])) as pipeline:
    _ = pipeline | beam.Create(range(3000)) | beam.Map(row) | WriteToBigTable("p", "i", "beam")
