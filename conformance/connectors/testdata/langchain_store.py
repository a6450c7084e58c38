"""Uses LangChain's BigtableByteStore: writes 500 pairs, reads, lists by prefix and
deletes some of them, by its calls and by those that it has for asyncio."""

import asyncio

from langchain_google_bigtable import BigtableByteStore, init_key_value_store_table

init_key_value_store_table(instance_id="i", table_id="pairs", project_id="p")
store = BigtableByteStore.create_sync(instance_id="i", table_id="pairs", project_id="p")
pairs = [(f"doc:{n:03}", b"\x00" + str(n).encode()) for n in range(500)]
store.mset(pairs)
assert store.mget(["doc:007", "none", "doc:499"]) == [b"\x007", None, b"\x00499"]
assert sorted(store.yield_keys(prefix="doc:01")) == [f"doc:{n:03}" for n in range(10, 20)]
store.mdelete([f"doc:{n:03}" for n in range(100)])
assert len(list(store.yield_keys())) == 400


async def main():
    await store.amset([("async:1", b"one")])
    assert await store.amget(["async:1", "doc:100", "doc:099"]) == [b"one", b"\x00100", None]
    assert [key async for key in store.ayield_keys(prefix="async:")] == ["async:1"]


asyncio.run(main())
store.get_engine()._run_as_sync(store.get_engine().close())
print("langchain ok")
