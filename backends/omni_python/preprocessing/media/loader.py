"""A request's media parts by the server's policy."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from omni_python.preprocessing.media.addresses import Resolver, is_public_address, resolve
from omni_python.preprocessing.media.budget import Budget
from omni_python.preprocessing.media.files import read_file_url
from omni_python.preprocessing.media.http import HttpFetcher
from omni_python.preprocessing.media.policy import MediaPolicy
from omni_python.proto.errors import InvalidArgument, OmniError, Unsupported
from omni_python.proto.request import AudioPart, ContentPart, ImagePart, Message, OmniRequest, TextPart, VideoPart


class MediaLoader:
    """Checks where each file of a request comes from, and gets those that lie elsewhere.

    `resolver` and `is_allowed_address` are the network as tests see it.
    """

    def __init__(
        self,
        policy: MediaPolicy,
        resolver: Resolver = resolve,
        is_allowed_address: Callable[[str], bool] = is_public_address,
    ) -> None:
        self.policy = policy
        self._http = HttpFetcher(policy, resolver, is_allowed_address) if policy.url_hosts else None

    def needs_fetch(self, request: OmniRequest) -> bool:
        """Whether `load` has to get something that the policy allows, which may take long."""
        return self.policy.fetches and any(
            _link(part) is not None for message in request.messages for part in message.content
        )

    def load(self, request: OmniRequest, is_cancelled: Callable[[], bool] = lambda: False) -> OmniRequest:
        """The request with every file's content in its part.

        Raises `InvalidArgument` or `Unsupported`, naming the part and what the policy accepts, and `Cancelled`.
        """
        budget = Budget(self.policy.max_bytes, self.policy.fetch_seconds, is_cancelled)
        messages = [
            Message(
                message.role,
                [
                    self._part(part, f"messages[{turn}].content[{index}]", budget)
                    for index, part in enumerate(message.content)
                ],
            )
            for turn, message in enumerate(request.messages)
        ]
        return msgspec.structs.replace(request, messages=messages)

    def _part(self, part: ContentPart, where: str, budget: Budget) -> ContentPart:
        if isinstance(part, TextPart):
            return part
        try:
            url = _link(part)
            if url is not None:
                content = np.frombuffer(self._get(url, budget), np.uint8)
                content.flags.writeable = False
                return msgspec.structs.replace(part, data=content)
            self._check_inline(part, budget)
            return part
        except OmniError as error:
            raise OmniError.from_code(error.code, f"{where}: {error}") from error

    def _check_inline(self, part: AudioPart | ImagePart | VideoPart, budget: Budget) -> None:
        if part.url is None and not self.policy.inline:
            raise Unsupported(f"inline data is off by this server's media policy; accepted: {self.policy.accepted()}")
        if part.url is not None and part.url.startswith("data:") and not self.policy.data_urls:
            raise Unsupported(f"data: URLs are off by this server's media policy; accepted: {self.policy.accepted()}")
        budget.take(sum(array.nbytes for array in _arrays(part)))

    def _get(self, url: str, budget: Budget) -> bytearray:
        scheme = url.partition(":")[0].lower()
        if scheme in ("http", "https") and self._http is not None:
            return self._checked(self._http.fetch(url, budget))
        if scheme == "file" and self.policy.file_root is not None:
            return self._checked(read_file_url(url, self.policy.file_root, budget))
        raise Unsupported(f"{scheme[:20]!r} URLs are not loaded by this server; {_advice(self.policy)}")

    def _checked(self, content: bytearray) -> bytearray:
        if not content:
            raise InvalidArgument("the file is empty")
        return content


def _advice(policy: MediaPolicy) -> str:
    if policy.fetches or not policy.data_urls:
        return f"its media policy accepts {policy.accepted()}"
    return "send the file inline as a data: URL (its media policy has no url_hosts and no file_root)"


def _link(part: ContentPart) -> str | None:
    """The URL of a file that is still to be got."""
    if isinstance(part, TextPart) or (part.data is not None and part.data.size):
        return None
    return part.url


def _arrays(part: AudioPart | ImagePart | VideoPart) -> list[np.ndarray]:
    given = [part.data, part.samples if isinstance(part, AudioPart) else None]
    return [array for array in given if array is not None]
