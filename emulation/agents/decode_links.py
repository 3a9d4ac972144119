"""Links from a prefill instance to every decode instance, on the fabric `none`: word that KV exists, and no KV."""

import asyncio
from collections.abc import Callable

from emulation.agents.config import AgentConfig, InstanceConfig
from emulation.agents.lines import CLOSED, LineLink, connect
from emulation.agents.wire import Message

CONNECT_TIMEOUT_S = 15.0


class DecodeLinks:
    """Kept links on the host network. `on_error(where, reason)` hears of one that breaks."""

    def __init__(
        self, config: AgentConfig, prefill: InstanceConfig, on_error: Callable[[str, BaseException | str], None]
    ) -> None:
        self._config, self._prefill, self._on_error = config, prefill, on_error
        self._links: dict[str, LineLink] = {}

    async def open(self) -> None:
        """To every decode instance, all at once. TimeoutError names the one that does not answer."""
        decodes = [name for name, instance in self._config.instances.items() if instance.role == "decode"]
        await asyncio.gather(*(self._connect(decode) for decode in decodes))

    def send(self, decode: str, message: Message) -> None:
        """One message. ConnectionError where the link is lost."""
        link = self._links.get(decode)
        if link is None:
            raise ConnectionError(f"link to {decode} is lost")
        link.send(message)

    async def _connect(self, decode: str) -> None:
        peer = (self._config.instances[decode].host_ip, self._config.request_port)
        sock = await connect(self._prefill.host_ip, peer, CONNECT_TIMEOUT_S)
        link = LineLink(sock, lambda message: None, lambda reason: self._lost(decode, reason))
        link.send({"type": "hello", "role": "prefill", "name": self._prefill.name})
        self._links[decode] = link

    def _lost(self, decode: str, reason: str) -> None:
        # An instance that ends is the zygote's to report; a request that needs the link says so when it does.
        self._links.pop(decode, None)
        if not reason.startswith(CLOSED):
            self._on_error(f"link to {decode}", reason)
