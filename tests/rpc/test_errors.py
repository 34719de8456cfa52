from support.rows import check_each

from sessiond import errors
from sessiond.rpc.errors import code_of, error_object, status_of, status_of_code, wire_errors

LITERAL = [
    (errors.ParseError, "parse_error", -32700, 400),
    (errors.InvalidRequest, "invalid_request", -32600, 400),
    (errors.MethodNotFound, "method_not_found", -32601, 404),
    (errors.InvalidParams, "invalid_params", -32602, 400),
    (errors.InternalError, "internal", -32603, 500),
    (errors.Unauthenticated, "unauthenticated", -32001, 401),
    (errors.NotFound, "not_found", -32002, 404),
    (errors.Forbidden, "forbidden", -32003, 403),
    (errors.Conflict, "conflict", -32004, 409),
    (errors.LimitExceeded, "limit_exceeded", -32005, 413),
    (errors.Unsupported, "unsupported", -32006, 422),
    (errors.Overloaded, "overloaded", -32007, 503),
    (errors.Stopping, "stopping", -32008, 503),
    (errors.StorageError, "storage", -32009, 507),
    (errors.RequestCancelled, "cancelled", -32800, 499),
]


@check_each(("error", "slug", "code", "status"), LITERAL)
def test_every_error_has_its_documented_codes(error, slug, code, status):
    assert (error.slug, code_of(slug), status_of(slug), status_of_code(code)) == (slug, code, status, status)
    assert error_object(error("It went wrong.")).code == code


def test_every_typed_error_of_the_program_is_in_the_table():
    typed = {kind.slug for kind in errors.SessiondError.__subclasses__()}
    assert typed == {slug for _, slug, _, _ in LITERAL} == {error["message"] for error in wire_errors()}


def test_data_has_type_code_and_the_fields_given_where_it_was_raised():
    found = error_object(errors.LimitExceeded("Too many.", code="attachments_file_count_exceeded", limit="x", value=50))
    assert (found.code, found.message, found.data) == (
        -32005,
        "Too many.",
        {"type": "limit_exceeded", "code": "attachments_file_count_exceeded", "limit": "x", "value": 50},
    )


def test_fields_given_where_it_was_raised_cannot_replace_the_type():
    assert error_object(errors.NotFound("No.", type="forbidden")).data == {"type": "not_found"}


def test_overloaded_and_stopping_always_have_retry_after():
    assert error_object(errors.Overloaded("Later.", retryAfterMs=250)).data == {
        "type": "overloaded",
        "retryAfterMs": 250,
    }
    assert error_object(errors.Stopping("Later.")).data == {"type": "stopping", "retryAfterMs": 1000}
    assert error_object(errors.NotFound("No.")).data == {"type": "not_found"}


def test_an_undefined_code_is_reported_as_a_server_error():
    assert (status_of_code(-1), code_of("no_such_slug"), status_of("no_such_slug")) == (500, -32603, 500)
