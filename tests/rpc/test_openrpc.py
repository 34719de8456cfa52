import msgspec

from sessiond.rpc.openrpc import openrpc_document


def test_the_document_is_made_from_the_method_table(table):
    document = msgspec.json.decode(msgspec.json.encode(openrpc_document(table, title="sessiond", version="1.2.3")))
    assert (document["openrpc"], document["info"]) == ("1.3.2", {"title": "sessiond", "version": "1.2.3"})
    assert [method["name"] for method in document["methods"]] == [method.name for method in table]
    echo = next(method for method in document["methods"] if method["name"] == "echo")
    errors = echo.pop("errors")
    assert errors == list(document["components"]["errors"].values())
    assert document["components"]["errors"]["storage"] == {
        "code": -32009,
        "message": "storage",
        "data": {"type": "storage"},
    }
    assert echo == {
        "name": "echo",
        "summary": "Gives back what it got.",
        "description": "Gives back what it got. It needs the scope `read`. It is also called `chat.echo` and `say`.",
        "paramStructure": "by-name",
        "params": [
            {"name": "sessionKey", "required": False, "schema": {"type": "string", "default": "main"}},
            {
                "name": "limit",
                "required": False,
                "schema": {"anyOf": [{"type": "integer"}, {"type": "number"}, {"type": "null"}], "default": None},
            },
            {
                "name": "attachments",
                "required": False,
                "schema": {"type": "array", "items": {"$ref": "#/components/schemas/Attachment"}, "default": []},
            },
        ],
        "result": {"name": "result", "schema": {"$ref": "#/components/schemas/EchoParams"}},
        "x-scope": "read",
        "x-aliases": ["chat.echo", "say"],
    }
    assert "EchoParams" in document["components"]["schemas"]


def test_required_params_and_methods_that_need_a_lasting_connection_are_marked(table):
    methods = {method["name"]: method for method in openrpc_document(table, title="t", version="1")["methods"]}
    assert methods["initialize"]["params"] == [{"name": "token", "required": True, "schema": {"type": "string"}}]
    assert methods["subscribe"]["x-lasting-connection"] is True
    assert methods["subscribe"]["description"].endswith("It needs a lasting connection.")
    assert methods["ping"]["params"] == []
