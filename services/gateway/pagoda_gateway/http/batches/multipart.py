"""multipart/form-data as it comes: small fields in memory, the file handed on in chunks.

Knows form data's framing, and no database.
"""

import logging
from dataclasses import dataclass

from python_multipart.exceptions import FormParserError, MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from pagoda_gateway.errors import InvalidRequestError, MediaTypeError, shorten

logging.getLogger("python_multipart").setLevel(logging.ERROR)  # clients hear of their mistakes

MAX_PARTS = 16
MAX_FIELD_BYTES = 1024
MAX_FILENAME_CHARS = 255
FILE_FIELD = "file"


@dataclass(slots=True)
class _Part:
    name: str
    filename: str | None
    value: bytearray


class FormParser:
    """Takes a form's bytes; gives the file's bytes back and keeps the other fields.

    Attributes:
        fields: text fields by name, each when it is complete.
        filename: of the file; None until it begins.
    """

    def __init__(self, content_type: str) -> None:
        """Prepare for a form.

        Raises:
            MediaTypeError: the header names none.
            InvalidRequestError: its boundary is too long.
        """
        media_type, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if media_type != b"multipart/form-data" or not boundary:
            raise MediaTypeError(
                f"content-type is {shorten(content_type)}; send the file and its purpose as "
                "multipart/form-data with a boundary"
            )
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self._part: _Part | None = None
        self._num_parts = 0
        self._header_name, self._header_value = bytearray(), bytearray()
        self._disposition = b""
        self._file_data: list[bytes] = []
        self._is_ended = False
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._on_part_begin,
                    "on_part_data": self._on_part_data,
                    "on_part_end": self._on_part_end,
                    "on_header_field": self._on_header_field,
                    "on_header_value": self._on_header_value,
                    "on_header_end": self._on_header_end,
                    "on_headers_finished": self._on_headers_finished,
                    "on_end": self._on_end,
                },
            )
        except FormParserError as error:
            raise InvalidRequestError(f"the form's boundary is not usable: {error}") from error

    def feed(self, data: bytes) -> list[bytes]:
        """Take what came; return the part of it that is the file's.

        Raises:
            InvalidRequestError: it is no form, or one with too much in it.
        """
        try:
            self._parser.write(data)
        except MultipartParseError as error:
            raise InvalidRequestError(f"the form cannot be read: {error}") from error
        file_data, self._file_data = self._file_data, []
        return file_data

    def end(self) -> None:
        """Say that nothing more comes.

        Raises:
            InvalidRequestError: the form is not complete, or has no file.
        """
        if not self._is_ended:
            raise InvalidRequestError("the form ends before its last boundary")
        if self.filename is None:
            raise InvalidRequestError("'file': this field is required", param=FILE_FIELD)

    def _on_part_begin(self) -> None:
        self._num_parts += 1
        if self._num_parts > MAX_PARTS:
            raise InvalidRequestError(f"the form has more than {MAX_PARTS} parts, the limit")
        self._disposition = b""

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _on_header_end(self) -> None:
        if self._header_name.lower() == b"content-disposition":
            self._disposition = bytes(self._header_value)
        self._header_name, self._header_value = bytearray(), bytearray()

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        name = options.get(b"name", b"").decode(errors="replace")
        filename = options.get(b"filename")
        if name == FILE_FIELD:
            if self.filename is not None:
                raise InvalidRequestError("'file' comes twice; send one", param=FILE_FIELD)
            shown = (filename or b"").decode(errors="replace").replace("\x00", "")
            self.filename = shown[-MAX_FILENAME_CHARS:] or "upload.jsonl"
        self._part = _Part(name, self.filename if name == FILE_FIELD else None, bytearray())

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        assert self._part is not None, "headers come first"
        if self._part.filename is not None:
            self._file_data.append(data[start:end])
            return
        self._part.value += data[start:end]
        if len(self._part.value) > MAX_FIELD_BYTES:
            raise InvalidRequestError(
                f"field {shorten(self._part.name, 40)} of the form has more than "
                f"{MAX_FIELD_BYTES} bytes, the limit"
            )

    def _on_part_end(self) -> None:
        part, self._part = self._part, None
        if part is not None and part.filename is None:
            self.fields[part.name] = part.value.decode(errors="replace")

    def _on_end(self) -> None:
        self._is_ended = True
