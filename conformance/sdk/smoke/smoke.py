"""Smoke test of the Python client: with BIGTABLE_EMULATOR_HOST set, or with TLS
and login at SMOKE_ENDPOINT (HOST:PORT), by GRPC_DEFAULT_SSL_ROOTS_FILE_PATH and
GOOGLE_APPLICATION_CREDENTIALS."""

import datetime
import os

from google.api_core.client_options import ClientOptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import bigtable
from google.cloud.bigtable import column_family, row_filters
from google.cloud.bigtable.data import BigtableDataClient, ReadRowsQuery, RowRange

endpoint = os.environ.get("SMOKE_ENDPOINT")
if endpoint:
    options = ClientOptions(api_endpoint=endpoint)
    client = bigtable.Client(project="p", admin=True, client_options=options, admin_client_options=options)
else:
    client = bigtable.Client(project="p", admin=True, credentials=AnonymousCredentials())
instance = client.instance("python-1", display_name="python-1", instance_type=1)
if endpoint and not instance.exists():
    cluster = instance.cluster("python-1", location_id="local-a", serve_nodes=1, default_storage_type=1)
    instance.create(clusters=[cluster]).result(60)
table = instance.table("smoke")
if table.exists():
    table.delete()
table.create(
    initial_split_keys=[b"m"],
    column_families={"f": column_family.MaxVersionsGCRule(2), "g": None},
)
rows = []
for i in range(1000):
    row = table.direct_row(f"row{i:05d}")
    row.set_cell("f", b"q", str(i).encode(), timestamp=datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc))
    row.set_cell("g", b"\x00\xff", b"x")
    rows.append(row)
for status in table.mutate_rows(rows):
    assert status.code == 0, status
assert sum(1 for _ in table.read_rows()) == 1000
assert table.read_row(b"row00042").cells["f"][b"q"][0].value == b"42"
got = [
    r.row_key
    for r in table.read_rows(
        start_key=b"row00010", end_key=b"row00020", filter_=row_filters.ValueRegexFilter(b"1[357]")
    )
]
assert got == [b"row00013", b"row00015", b"row00017"], got
for want in (5, 11):
    counter = table.append_row(b"counter")
    counter.increment_cell_value("f", b"n", 5 if want == 5 else 6)
    assert counter.commit()["f"][b"n"][0][0] == want.to_bytes(8, "big")
conditional = table.conditional_row(b"row00001", row_filters.ValueRegexFilter(b"1"))
conditional.set_cell("f", b"hit", b"y", state=True)
assert conditional.commit()
bad = table.direct_row("x")
bad.set_cell("nofam", b"q", b"v")
assert [s.code for s in table.mutate_rows([bad])] == [5]
assert [s.row_key for s in table.sample_row_keys()] == [b"m", b""]
# The data client, which accepts messages of 4 MiB at most from an emulator.
large = table.direct_row(b"large")
large.set_cell("g", b"value", bytes(range(256)) * (10 << 12))
assert large.commit().code == 0
if not endpoint:
    with BigtableDataClient(project="p") as data, data.get_table("python-1", "smoke") as reader:
        row = reader.read_row(b"large")
        assert row.get_cells("g", b"value")[0].value == bytes(range(256)) * (10 << 12)
        assert [r.row_key for r in reader.read_rows(ReadRowsQuery(row_ranges=RowRange(b"l", b"row00002")))] == [b"large", b"row00000", b"row00001"]
table.delete()
if endpoint:
    policy = instance.test_iam_permissions(["bigtable.tables.create", "bigtable.instances.setIamPolicy"])
    assert policy == ["bigtable.tables.create", "bigtable.instances.setIamPolicy"], policy
    instance.delete()
print("python ok")
