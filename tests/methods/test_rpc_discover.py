"""`rpc.discover` over every transport."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from jsonschema import Draft7Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT7
from support.method_calls import Call

from sessiond.methods.table import METHODS
from sessiond.rpc.openrpc import openrpc_document

META = Path(__file__).parents[1] / "golden" / "openrpc"
DOCUMENT: dict[str, Any] = json.loads(msgspec.json.encode(openrpc_document(METHODS, title="sessiond", version="1.0")))


def test_the_document_has_every_method_once(call: Call) -> None:
    document = call("rpc.discover")
    names = [method["name"] for method in document["methods"]]
    assert sorted(names) == sorted(method.name for method in METHODS)
    assert document["openrpc"].startswith("1.")


def test_the_document_validates_against_the_official_meta_schema() -> None:
    meta, json_schema = (json.loads((META / name).read_text()) for name in ("meta-schema.json", "json-schema.json"))
    resources = [
        (address, Resource.from_contents(json_schema, default_specification=DRAFT7))
        for address in ("https://meta.json-schema.tools", "https://meta.json-schema.tools/")
    ]
    validator = Draft7Validator(meta, registry=Registry().with_resources(resources))
    assert [error.message for error in validator.iter_errors(DOCUMENT)] == []
    # Make sure that the validation can fail, also within a schema, which is what the second meta-schema checks.
    broken = json.loads(json.dumps(DOCUMENT))
    broken["methods"][0]["params"][0]["schema"]["minimum"] = "low"
    del broken["methods"][1]["name"]
    assert len(list(validator.iter_errors(broken))) >= 2


def test_required_parameters_come_before_the_others() -> None:
    """The OpenRPC specification requires it, but its meta-schema cannot express it."""
    for method in DOCUMENT["methods"]:
        needed = [param["required"] for param in method["params"]]
        assert needed == sorted(needed, reverse=True), method["name"]


def test_every_reference_resolves_to_a_schema() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    references = {one["$ref"] for one in _objects(DOCUMENT) if "$ref" in one}
    assert {reference.removeprefix("#/components/schemas/") for reference in references} <= set(schemas)
    for schema in schemas.values():
        Draft7Validator.check_schema(schema)


def test_every_method_parameter_and_field_has_a_description() -> None:
    described = {method["name"]: method["description"] for method in DOCUMENT["methods"]}
    for method in DOCUMENT["methods"]:
        described |= {f"{method['name']} {param['name']}": param.get("description", "") for param in method["params"]}
    for name, schema in DOCUMENT["components"]["schemas"].items():
        fields = schema.get("properties", {}).items()
        described |= {f"{name}.{field}": one.get("description", "") for field, one in fields}
    assert [name for name, text in described.items() if not (text[:1].isupper() or text[:1] == "`")] == []
    assert [name for name, text in described.items() if not text.endswith(".") or len(text) > 250] == []
    assert len(described) > 400


def test_descriptions_of_times_and_durations_name_the_unit() -> None:
    units = {"Ms": "millisecond", "Seconds": "second", "At": "milliseconds since 1970", "Minutes": "minutes"}
    wrong = [
        (name, field)
        for name, schema in DOCUMENT["components"]["schemas"].items()
        for field, one in schema.get("properties", {}).items()
        for end, unit in units.items()
        # `lookedAt` counts what was looked at.
        if field.endswith(end)
        and field != "lookedAt"
        and "string" not in json.dumps(one)
        and unit not in one["description"]
    ]
    assert wrong == []


def test_every_default_validates_against_its_own_schema() -> None:
    for method in DOCUMENT["methods"]:
        for param in method["params"]:
            schema = {**param["schema"], "components": DOCUMENT["components"]}
            if "default" in schema:
                assert Draft7Validator(schema).is_valid(schema["default"]), param


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for member in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _objects(member)
