"""Answers queries by SQLite, which Python brings along.

Usage: sqlite.py ROWS.csv < queries.json > answers.json

The rows are k, name, category, script as text, utf8 and utf16 in hexadecimal
digits. An answer is {"rows": [[...]], "seconds": s}; bytes are written as
{"hex": ...}.
"""

import csv
import json
import sqlite3
import sys
import time

db = sqlite3.connect(":memory:")
db.execute("CREATE TABLE u (k TEXT PRIMARY KEY, name TEXT, category TEXT, script TEXT, utf8 BLOB, utf16 BLOB) WITHOUT ROWID")
db.create_function("hex_to_int", 1, lambda s: int(s, 16), deterministic=True)
with open(sys.argv[1], newline="", encoding="utf-8") as rows:
    db.executemany(
        "INSERT INTO u VALUES (?, ?, ?, ?, ?, ?)",
        ((k, n, c, s, bytes.fromhex(a), bytes.fromhex(b)) for k, n, c, s, a, b in csv.reader(rows)),
    )
# LIKE is case-sensitive in GoogleSQL.
db.execute("PRAGMA case_sensitive_like = ON")


def plain(value):
    return {"hex": value.hex()} if isinstance(value, bytes) else value


answers = []
for query in json.load(sys.stdin):
    start = time.time()
    rows = [[plain(v) for v in row] for row in db.execute(query)]
    answers.append({"rows": rows, "seconds": time.time() - start})
json.dump(answers, sys.stdout)
