"""Usage: feast_store.py DIR apply|teardown

Keeps the features of 300 drivers online in Bigtable: a feature view from a Parquet
file is applied and materialized, rows are pushed, and features read for some of the
drivers. teardown drops its table."""

import datetime
import os
import sys

import pandas
from feast import Entity, FeatureStore, FeatureView, Field, FileSource
from feast.types import Float32, Int64, String

directory, what = sys.argv[1:]
with open(os.path.join(directory, "feature_store.yaml"), "w") as file:
    file.write(
        """
project: shop
provider: local
registry: registry.db
offline_store: {type: dask}
online_store: {type: bigtable, project_id: p, instance: i}
entity_key_serialization_version: 3
"""
    )
store = FeatureStore(repo_path=directory)
if what == "teardown":
    store.teardown()
    sys.exit()
now = datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0)


def frame(drivers):
    return pandas.DataFrame(
        {
            "driver_id": list(drivers),
            "trips": [n * 3 for n in drivers],
            "rating": [n / 4 for n in drivers],
            "city": [f"city {n % 7}" for n in drivers],
            "event_timestamp": [now - datetime.timedelta(hours=1) for _ in drivers],
            "created": [now for _ in drivers],
        }
    )


parquet = os.path.join(directory, "drivers.parquet")
frame(range(300)).to_parquet(parquet)
driver = Entity(name="driver", join_keys=["driver_id"])
view = FeatureView(
    name="stats",
    entities=[driver],
    ttl=datetime.timedelta(days=1),
    schema=[Field(name="trips", dtype=Int64), Field(name="rating", dtype=Float32), Field(name="city", dtype=String)],
    source=FileSource(path=parquet, timestamp_field="event_timestamp", created_timestamp_column="created"),
)
store.apply([driver, view])
store.materialize(now - datetime.timedelta(days=1), now)
store.write_to_online_store("stats", frame([1000]))
got = store.get_online_features(
    features=["stats:trips", "stats:rating", "stats:city"],
    entity_rows=[{"driver_id": n} for n in (7, 1000, 5555)],
).to_dict()
assert got["trips"] == [21, 3000, None], got
assert got["rating"] == [1.75, 250.0, None], got
assert got["city"] == ["city 0", "city 6", None], got
print("feast ok")
