"""The interface of `LeanH2` without its fast path, for the h2 of 2017 that apns2 needs."""

from __future__ import annotations

from typing import Any

from h2.config import H2Configuration
from h2.connection import ConnectionState, H2Connection
from h2.errors import ErrorCodes
from h2.events import Event
from h2.exceptions import FrameTooLargeError, StreamClosedError
from h2.settings import SettingCodes, Settings
from hpack import HeaderTuple

from notifier.providers.transport.http2.headers import HeaderEncoder

FRAME_HEADER_BYTES = 9


class PlainH2(H2Connection):
    """A client's end of a connection, see `LeanH2`."""

    def __init__(self) -> None:
        super().__init__(
            config=H2Configuration(client_side=True, header_encoding=None, validate_outbound_headers=False)
        )
        self.local_settings = Settings(client=True, initial_values={SettingCodes.ENABLE_PUSH: 0})
        self.encoder = HeaderEncoder()
        self._came = b""

    def open_request(self, stream_id: int, headers: list[HeaderTuple]) -> None:
        self.send_headers(stream_id, headers)

    def room(self, stream_id: int) -> int:
        return min(self.local_flow_control_window(stream_id), self.max_outbound_frame_size)

    def send_part(self, stream_id: int, part: bytes, *, last: bool) -> None:
        self.send_data(stream_id, part, end_stream=last)

    def feed(self, data: bytes) -> None:
        self._came += data

    def next_frame(self) -> list[Event] | None:
        """See `LeanH2`. h2 gets one frame at a time: of several it would drop all if one is wrong."""
        length = int.from_bytes(self._came[:3], "big")
        if length > self.max_inbound_frame_size and len(self._came) >= FRAME_HEADER_BYTES:
            # h2 would first buffer the whole frame.
            self.close_connection(ErrorCodes.FRAME_SIZE_ERROR)
            raise FrameTooLargeError(f"a frame of {length} bytes")
        if len(self._came) < (size := FRAME_HEADER_BYTES + length):
            return None
        frame, self._came = self._came[:size], self._came[size:]
        return self.receive_data(frame)

    def _receive_goaway_frame(self, frame: Any) -> Any:
        # As in `LeanH2`: the streams up to the last one go on, and the unsent data stays.
        to_send = self._data_to_send
        result = super()._receive_goaway_frame(frame)
        self._data_to_send = to_send
        self.state_machine.state = ConnectionState.CLIENT_OPEN
        return result

    def _receive_rst_stream_frame(self, frame: Any) -> Any:
        try:
            return super()._receive_rst_stream_frame(frame)
        except StreamClosedError:  # RFC 9113, 8.1: a reset may follow an answer; h2 2 ends the connection
            return [], []
