"""Every frame that is sent fits the official schema of ACP v1, which comes from its npm package."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from support.acp_frames import frame_types, read_all_frames

pytestmark = pytest.mark.agents
PACKAGE = "https://registry.npmjs.org/@agentclientprotocol/sdk/-/sdk-2.4.0.tgz"


def load_schema() -> dict[str, Any]:
    try:
        packed = httpx.get(PACKAGE, timeout=60).raise_for_status().content
    except httpx.HTTPError as error:
        pytest.skip(f"the schema cannot be fetched from the npm registry: {error}")
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        file = archive.extractfile("package/schema/v1/schema.json")
        assert file is not None
        schema: dict[str, Any] = json.load(file)
        return schema


async def test_every_frame_that_is_sent_fits_the_official_schema(tmp_path: Path) -> None:
    definitions = load_schema()["$defs"]
    for name, value in {repr(one): one for one in frame_types(await read_all_frames(tmp_path))}.values():
        # The models of the official SDK for Python divide this one.
        name = name.replace("OptionSelectRequest", "OptionRequest")
        jsonschema.Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": definitions}).validate(value)
