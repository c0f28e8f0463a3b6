"""What the server says about itself: OpenAPI for its routes, AsyncAPI for its socket, and a page made of both.

    shapes.py       JSON Schema, written short
    schemas/        the shapes of bodies, by name, most of them made of the structs of `gateway/api/shapes`
    parameters.py   query parameters, path parameters and headers, by name
    errors.py       what every error code means
    operations.py   the routes, by the name they have in the route table
    document.py     the route table and all of the above as one OpenAPI document
    sockets.py      the ops and pushes of /ws/v1 as one AsyncAPI document
    page.py         both as HTML
    served.py       the handlers

What is described by hand can be wrong; tests keep it from that. A route without a description
fails. Every answer that a test of the HTTP or WebSocket surface receives is held against the documents
(tests/contract.py): its status, its content type, its body to the last field, its error code. `schemathesis` does what
the documents allow.
"""
