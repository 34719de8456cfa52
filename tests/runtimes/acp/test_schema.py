"""Every frame that is sent fits the official models of the protocol."""

from __future__ import annotations

from pathlib import Path

from support import acp_schema
from support.acp_frames import REQUESTS, frame_types, read_all_frames
from support.sampling import whole_only


@whole_only("test_a_turn_of_an_agent_of_the_official_sdk_is_in_the_transcript")
async def test_every_frame_that_is_sent_fits_the_official_models(tmp_path: Path) -> None:
    found = frame_types(await read_all_frames(tmp_path))
    assert {name for name, _ in found} == {
        *REQUESTS.values(), "Error", "RequestPermissionResponse", "CreateElicitationResponse",
    }  # fmt: skip
    for name, value in {repr(one): one for one in found}.values():
        acp_schema.check(name, value)
