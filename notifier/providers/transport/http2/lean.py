"""h2 with a fast path for the three frames of a push: its headers, its body, and a response without a body.

h2 builds an object for each frame, with its flags and a text for logs: two thirds of a client's time. Here these three
frames are written and read as bytes. All other frames, and unusual ones of these three, take h2's own path. States and
windows are h2's on both paths, so the paths may alternate frame by frame.
tests/contract/providers/transport/http2/test_lean.py compares them.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

from h2.config import H2Configuration
from h2.connection import AllowedStreamIDs, ConnectionInputs, ConnectionState, H2Connection, _decode_headers
from h2.errors import ErrorCodes
from h2.events import Event
from h2.exceptions import ProtocolError
from h2.frame_buffer import FrameBuffer
from h2.settings import SettingCodes, Settings
from h2.stream import StreamClosedBy, StreamInputs, StreamState
from h2.utilities import SizeLimitDict
from hpack import HeaderTuple
from hyperframe.exceptions import InvalidPaddingError
from hyperframe.frame import GoAwayFrame, HeadersFrame

from notifier.providers.transport.http2.headers import HeaderEncoder

DATA, HEADERS, CONTINUATION = 0, 1, 9
END_STREAM, END_HEADERS = 0x1, 0x4
FRAME_HEADER: Final = struct.Struct(">HBBBL")  # 24 bits of length, type, flags, stream
SWEEP_EVERY: Final = 128
MAX_RESETS: Final = 10_000  # streams that are remembered as reset: an answer to one may still arrive
MAX_HEADERS_BYTES: Final = 16_384  # of one answer, decompressed


class BareResponse(NamedTuple):
    """A HEADERS frame that is a whole response, still compressed."""

    stream_id: int
    block: bytes


class _Frames(FrameBuffer):
    """h2's buffer; it hands out a whole response in one HEADERS frame as a BareResponse."""

    def __next__(self) -> Any:
        data = self._data
        if len(data) >= FRAME_HEADER.size:
            high, low, kind, flags, stream_id = FRAME_HEADER.unpack_from(data)
            size = (high << 8) + low
            end = FRAME_HEADER.size + size
            if len(data) < end:
                self._validate_frame_length(size)  # h2 would first buffer the whole frame
            plain = kind == HEADERS and flags == END_HEADERS | END_STREAM and 0 < stream_id < 1 << 31
            if plain and not self._headers_buffer and len(data) >= end and size <= self.max_frame_size:
                block = bytes(data[FRAME_HEADER.size : end])
                del data[:end]
                return BareResponse(stream_id, block)
        return super().__next__()


class _Resets(SizeLimitDict):
    """How streams were closed, for reset ones only. h2 keeps 65,536 of all streams, which is 9 MB a connection."""

    def __setitem__(self, stream_id: int, closed_by: Any) -> None:
        if closed_by in {StreamClosedBy.RECV_RST_STREAM, StreamClosedBy.SEND_RST_STREAM}:
            super().__setitem__(stream_id, closed_by)


class LeanH2(H2Connection):
    """A client's end of a connection. The caller checks headers; they are neither validated nor normalized."""

    def __init__(self) -> None:
        # The provider builds and checks the headers; h2's own checks would take a third of the time.
        super().__init__(
            H2Configuration(
                client_side=True,
                header_encoding=None,
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
                validate_inbound_headers=False,
                normalize_inbound_headers=False,
            )
        )
        # Set before the connection begins, so that they hold without the server's acknowledgement. No server push. The
        # limit of streams is h2's default; 0 would refuse a late answer to a stream that was reset.
        self.local_settings = Settings(
            client=True,
            initial_values={
                SettingCodes.ENABLE_PUSH: 0,
                SettingCodes.MAX_CONCURRENT_STREAMS: 100,
                SettingCodes.MAX_HEADER_LIST_SIZE: MAX_HEADERS_BYTES,
            },
        )
        self.decoder.max_header_list_size = MAX_HEADERS_BYTES
        self.encoder = HeaderEncoder()
        self.incoming_buffer = _Frames()
        self._closed_streams = _Resets(size_limit=MAX_RESETS)
        self._until_sweep = SWEEP_EVERY

    def open_request(self, stream_id: int, headers: list[HeaderTuple]) -> None:
        """As `send_headers` for a new stream. The caller keeps to the limit of open streams."""
        self.state_machine.process_input(ConnectionInputs.SEND_HEADERS)
        self._until_sweep -= 1
        if not self._until_sweep:
            self._until_sweep = SWEEP_EVERY
            self.open_outbound_streams  # noqa: B018 - for its side effect: closed streams are dropped
        stream = self._begin_new_stream(stream_id, AllowedStreamIDs.ODD)
        stream.state_machine.process_input(StreamInputs.SEND_HEADERS)
        block = self.encoder.encode(headers)
        most = self.max_outbound_frame_size
        self._put(HEADERS, END_HEADERS if len(block) <= most else 0, stream_id, block[:most])
        for at in range(most, len(block), most):
            self._put(CONTINUATION, END_HEADERS if len(block) <= at + most else 0, stream_id, block[at : at + most])

    def room(self, stream_id: int) -> int:
        """How many bytes one DATA frame on this stream may carry now; 0 or less is none."""
        stream = self.streams[stream_id]
        return min(stream.outbound_flow_control_window, self.outbound_flow_control_window, self.max_outbound_frame_size)

    def send_part(self, stream_id: int, part: bytes, *, last: bool) -> None:
        """As `send_data`, for a part that is within `room`."""
        self.state_machine.process_input(ConnectionInputs.SEND_DATA)
        stream = self.streams[stream_id]
        stream.state_machine.process_input(StreamInputs.SEND_DATA)
        if last:
            stream.state_machine.process_input(StreamInputs.SEND_END_STREAM)
        stream.outbound_flow_control_window -= len(part)
        self.outbound_flow_control_window -= len(part)
        self._put(DATA, END_STREAM if last else 0, stream_id, part)

    def feed(self, data: bytes) -> None:
        """Buffer received bytes for `next_frame`."""
        self.incoming_buffer.max_frame_size = self.max_inbound_frame_size
        self.incoming_buffer.add_data(data)

    def next_frame(self) -> list[Event] | None:
        """Read the next frame; None if no whole frame is left. Raises H2Error as `receive_data` does.

        `receive_data` returns the events of all frames, or of none if one frame is wrong.
        """
        try:
            frame = next(self.incoming_buffer, None)
            return None if frame is None else self._receive_frame(frame)
        except InvalidPaddingError as error:
            self._terminate_connection(ErrorCodes.PROTOCOL_ERROR)
            raise ProtocolError("Received frame with invalid padding.") from error
        except ProtocolError as error:
            self._terminate_connection(error.error_code)
            raise

    def _put(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        size = len(payload)
        self._data_to_send += FRAME_HEADER.pack(size >> 8, size & 0xFF, kind, flags, stream_id) + payload

    def _receive_frame(self, frame: Any) -> list[Event]:
        if type(frame) is not BareResponse:
            return super()._receive_frame(frame)
        stream_id, block = frame
        stream = self.streams.get(stream_id)
        if stream is None or stream.state_machine.state is not StreamState.HALF_CLOSED_LOCAL:
            return super()._receive_frame(HeadersFrame(stream_id, block, flags=["END_HEADERS", "END_STREAM"]))
        headers: Any = _decode_headers(self.decoder, block)
        self.state_machine.process_input(ConnectionInputs.RECV_HEADERS)
        if headers and headers[0][0] == b":status" and headers[0][1][:1] == b"1":
            raise ProtocolError("Cannot set END_STREAM on informational responses")
        begun = stream.state_machine.process_input(StreamInputs.RECV_HEADERS)
        ended = stream.state_machine.process_input(StreamInputs.RECV_END_STREAM)
        response: Any = begun[0]
        response.headers, response.stream_ended = headers, ended[0]
        stream._initialize_content_length(headers)  # noqa: SLF001 - refuses a wrong length
        return [response, ended[0]]

    def _stream_closed_by(self, stream_id: int) -> StreamClosedBy | None:
        # A client's stream ids only grow. So a stream that it opened has ended if it is neither open nor remembered as
        # reset.
        known = super()._stream_closed_by(stream_id)
        if known is None and stream_id not in self.streams and self._is_ours(stream_id):
            return StreamClosedBy.RECV_END_STREAM
        return known

    def _is_ours(self, stream_id: int) -> bool:
        return stream_id % 2 == 1 and stream_id <= (self.highest_outbound_stream_id or 0)

    def _receive_goaway_frame(self, frame: GoAwayFrame) -> Any:
        # After a GOAWAY h2 takes every frame for an error, and discards the data that it has not sent. But the streams
        # up to the last one go on.
        to_send = self._data_to_send
        result = super()._receive_goaway_frame(frame)
        self._data_to_send = to_send
        self.state_machine.state = ConnectionState.CLIENT_OPEN
        return result
