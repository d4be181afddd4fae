# Makes reference.parquet, binary.parquet and nul.parquet with the reference writer (pyarrow 26.0.1), and
# reference.jsonl, the rows of reference.parquet as JSON objects.
import datetime
import decimal
import json

import pyarrow as pa
import pyarrow.parquet as pq

CALL = pa.struct([("name", pa.string()), ("arguments", pa.string())])
MESSAGE = pa.struct([("role", pa.string()), ("content", pa.string()), ("tool_calls", pa.list_(CALL))])
SCHEMA = pa.schema([
    ("messages", pa.list_(MESSAGE)), ("prompt", pa.string()), ("completion", pa.large_string()),
    ("chosen", pa.string()), ("rejected", pa.string()), ("input_ids", pa.list_(pa.int32())),
    ("margin", pa.float64()), ("ratio", pa.float32()), ("flag", pa.bool_()), ("count", pa.uint64()),
    ("price", pa.decimal128(9, 2)), ("day", pa.date32()), ("time", pa.time32("ms")),
    ("at", pa.timestamp("us", "UTC")), ("local", pa.timestamp("ns")), ("nested", pa.list_(pa.list_(pa.int8()))),
    ("point", pa.struct([("x", pa.int16()), ("y", pa.struct([("z", pa.string())]))])),
    ("scores", pa.map_(pa.string(), pa.int64())), ("bytes", pa.binary()), ("nothing", pa.null())])


def message(role, content, calls=None):
    return {"role": role, "content": content, "tool_calls": calls}


ROWS = [
    dict(messages=[message("user", "What is 2 + 2?"), message("assistant", "4")], prompt="What is 2 + 2?",
         completion="4", chosen="4", rejected="5", input_ids=[1, 2, 3], margin=0.5, ratio=0.25, flag=True,
         count=2**64 - 1, price=decimal.Decimal("-0.05"), day=datetime.date(2024, 2, 29),
         time=datetime.time(23, 59, 58, 7000), at=datetime.datetime(2024, 2, 29, 12, 30),
         local=datetime.datetime(1969, 12, 31, 23, 59, 59, 999999), nested=[[1, None], [], None],
         point={"x": -7, "y": {"z": "é"}}, scores=[("a", 1), ("b \"c\"", None)], bytes="世界 🙂".encode(), nothing=None),
    dict(messages=[message("system", "Be brief."), message("user", "Grüße,\n\"世界\"\t\\ 🙂 \x01\x7f"),
                   message("assistant", "Hallo.")],
         prompt="Grüße", completion="Hallo.", chosen="Hallo.", rejected="", input_ids=[5, 4], margin=1e-7, ratio=0.1,
         flag=False, count=0, price=decimal.Decimal("1234567.25"), day=datetime.date(1, 1, 1),
         time=datetime.time(0, 0), at=datetime.datetime(1900, 1, 1, 0, 0, 0, 1),
         local=datetime.datetime(2024, 1, 1), nested=[], point={"x": None, "y": None}, scores=[], bytes=b"",
         nothing=None),
    dict(messages=[message("user", "What is the weather?"),
                   message("assistant", None, [{"name": "weather", "arguments": "{\"city\": \"Rome\"}"}]),
                   message("tool", "sunny"), message("assistant", "It is sunny.")],
         prompt="x", completion="y", chosen="y", rejected="z", input_ids=[7, 7], margin=-2.0, ratio=None, flag=None,
         count=None, price=None, day=None, time=None, at=None, local=None, nested=None, point=None, scores=None,
         bytes=None, nothing=None),
]


def as_json(value, field):
    if value is None:
        return None
    if pa.types.is_binary(field):
        return value.decode()
    if pa.types.is_decimal(field):
        return float(value)
    if pa.types.is_map(field):
        return dict(value)
    if pa.types.is_list(field):
        return [as_json(v, field.value_type) for v in value]
    if pa.types.is_struct(field):
        return {f.name: as_json(value[f.name], f.type) for f in field}
    if pa.types.is_timestamp(field):
        digits = "%Y-%m-%dT%H:%M:%S.%f" if value.microsecond else "%Y-%m-%dT%H:%M:%S"
        text = value.strftime(digits) + ("000" if field.unit == "ns" and value.microsecond else "")
        return text + ("Z" if field.tz else "")
    if pa.types.is_time(field):
        return value.isoformat("milliseconds" if value.microsecond else "seconds")
    return value.isoformat() if pa.types.is_date(field) else value


# Pages have checksums, so that all damage to a value is found.
pq.write_table(pa.Table.from_pylist(ROWS, schema=SCHEMA), "reference.parquet", compression="zstd", row_group_size=2,
               write_page_checksum=True, write_statistics=False, store_schema=False)
with open("reference.jsonl", "w", encoding="utf-8") as file:
    for row in ROWS:
        values = {field.name: as_json(row[field.name], field.type) for field in SCHEMA}
        file.write(json.dumps(values, ensure_ascii=False, separators=(",", ":")).replace("1e-07", "1e-7") + "\n")
pq.write_table(pa.table({"text": pa.array(["one", "two", "three"]), "image": pa.array([b"", b"ok", b"\xffPNG"])}),
               "binary.parquet", write_statistics=False, store_schema=False)
pq.write_table(pa.Table.from_pylist([{"text": "one"}, {"text": "t\0wo"}]), "nul.parquet", write_statistics=False,
               store_schema=False)
