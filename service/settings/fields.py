"""What all sections share: their type, and the types of their fields."""

import re
from ipaddress import ip_address
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(ge=0)]
PositiveSeconds = Annotated[float, Field(gt=0)]
_DNS_NAME = re.compile(r"(\*\.)?([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]*[a-z0-9])?")


def _host_name(text: str) -> str:
    try:
        return str(ip_address(text))
    except ValueError:
        if not _DNS_NAME.fullmatch(text):
            raise ValueError(f"{text!r} is neither an IP address nor a DNS name in lower case") from None
        return text


HostName = Annotated[str, Field(max_length=253), AfterValidator(_host_name)]


# Seconds. Shorter, and a certificate could end while the next one waits to be trusted everywhere (10 s each).
Lifetime = Annotated[float, Field(ge=60, le=100 * 365 * 86_400)]


class Section(BaseModel):
    """A group of settings: frozen, and a misspelt field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")
